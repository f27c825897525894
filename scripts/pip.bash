# What the scripts that install from PyPI share: they source it, with pipefail set.

# The Python that runs the tests; what is installed is for it, whichever Python's pip does it.
python=${PYTHON:-/usr/bin/python3}
pips=("$python -m pip" 'python3 -m pip' pip3)
pip_said= # the last line of what the last pip said

have_pip() {
    local pip
    for pip in "${pips[@]}"; do
        $pip --version >/dev/null 2>&1 && return 0
    done
    return 1
}

# pip_into FOLDER NAME==VERSION...: wheels of these packages, and of what they need, into FOLDER,
# which is emptied first. Where it fails, $pip_said says why.
pip_into() {
    local folder=$1 version pip
    shift
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || return 1
    pip_said='there is no pip'
    for pip in "${pips[@]}"; do
        $pip --version >/dev/null 2>&1 || continue
        rm -rf "$folder"
        pip_said=$($pip install -q --disable-pip-version-check --no-input --retries 2 \
            --target "$folder" --python-version "$version" --only-binary :all: "$@" 2>&1 |
            tail -n 1) && return 0
    done
    return 1
}
