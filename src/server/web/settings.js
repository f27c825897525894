// The settings dialog. Every change counts at once; Done only closes.

import * as store from "./store.js";

const $ = (id) => document.getElementById(id);

// The schema as an object, null for none; throws Error with what is wrong with it.
export function parseSchema(text) {
    if (!text.trim()) {
        return null;
    }
    let schema;
    try {
        schema = JSON.parse(text);
    } catch (error) {
        throw new Error("This is not JSON: " + error.message);
    }
    if (typeof schema !== "object" || schema === null || Array.isArray(schema)) {
        throw new Error("A schema is a JSON object.");
    }
    return schema;
}

export function applyTheme(theme) {
    const root = document.documentElement;
    if (theme === "light" || theme === "dark") {
        root.dataset.theme = theme;
    } else {
        delete root.dataset.theme;
    }
    $("toggle-theme").setAttribute("aria-pressed", String(isDark()));
}

export function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function numberOf(input) {
    return input.value.trim() === "" || !input.validity.valid ? null : Number(input.value);
}

function markSchema(text) {
    const help = $("schema-help");
    let wrong = "";
    try {
        parseSchema(text);
    } catch (error) {
        wrong = error.message;
    }
    help.classList.toggle("wrong", Boolean(wrong));
    help.textContent = wrong || "With a schema every answer is JSON that keeps to it. Empty is text.";
    $("schema").setAttribute("aria-invalid", String(Boolean(wrong)));
}

// Opens with a note (may be "") and the focus on the element of that id.
export function openSettings(note = "", focus = "") {
    $("settings-note").textContent = note;
    $("settings-note").hidden = !note;
    if (!$("settings").open) {
        $("settings").showModal();
    }
    if (focus) {
        $(focus).focus();
    }
}

// changed(what) is called after each change; deleteAll() when that was confirmed.
export function connectSettings(state, changed, deleteAll) {
    const s = state.settings;
    $("api-key").value = state.key;
    $("keep-key").checked = s.keepKey;
    $("system").value = s.system;
    $("temperature").value = s.temperature === null ? "" : s.temperature;
    $("temperature-slider").value = s.temperature === null ? 1 : s.temperature;
    $("max-tokens").value = s.maxTokens === null ? "" : s.maxTokens;
    $("schema").value = s.schema;
    markSchema(s.schema);
    for (const radio of document.getElementsByName("theme")) {
        radio.checked = radio.value === s.theme;
        radio.addEventListener("change", () => set("theme", radio.value));
    }

    function set(name, value) {
        s[name] = value;
        store.saveSettings(s);
        if (name === "theme") {
            applyTheme(value);
        }
        changed(name);
    }
    const saveKey = () => {
        state.key = $("api-key").value.trim();
        store.saveKey(state.key, s.keepKey);
        changed("key");
    };
    $("api-key").addEventListener("change", saveKey);
    $("keep-key").addEventListener("change", () => {
        set("keepKey", $("keep-key").checked);
        saveKey();
    });
    $("system").addEventListener("input", () => set("system", $("system").value));
    $("temperature").addEventListener("input", () => {
        set("temperature", numberOf($("temperature")));
        $("temperature-slider").value = s.temperature === null ? 1 : s.temperature;
    });
    $("temperature-slider").addEventListener("input", () => {
        $("temperature").value = $("temperature-slider").value;
        set("temperature", Number($("temperature-slider").value));
    });
    $("max-tokens").addEventListener("input", () => set("maxTokens", numberOf($("max-tokens"))));
    $("schema").addEventListener("input", () => {
        markSchema($("schema").value);
        set("schema", $("schema").value);
    });
    $("settings-form").addEventListener("submit", (event) => {
        if ($("schema").getAttribute("aria-invalid") === "true") {
            event.preventDefault();
            $("schema").focus();
        }
    });
    $("close-settings").addEventListener("click", () => $("settings").close());
    $("settings").addEventListener("click", (event) => { // outside of it
        if (event.target === $("settings")) {
            $("settings").close();
        }
    });
    connectDeleteAll(deleteAll);
}

// The button asks before it does it.
function connectDeleteAll(deleteAll) {
    const button = $("delete-all"), label = button.textContent;
    let timer = 0;
    const reset = () => {
        clearTimeout(timer);
        timer = 0;
        button.textContent = label;
    };
    button.addEventListener("click", () => {
        if (timer) {
            reset();
            deleteAll();
        } else {
            button.textContent = "Press again: delete all";
            timer = setTimeout(reset, 5000);
        }
    });
    $("settings").addEventListener("close", reset);
}
