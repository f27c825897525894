// Before anything is painted: the colours that were chosen. Runs in the head, so it stays small.
(function () {
    let theme = null;
    try {
        theme = JSON.parse(localStorage.getItem("deepinfer.settings") || "{}").theme;
    } catch (e) { /* no storage: the system's colours */ }
    if (theme === "light" || theme === "dark") {
        document.documentElement.dataset.theme = theme;
    }
})();
