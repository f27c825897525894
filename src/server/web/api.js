// The server: its models, and answers as they stream in.

export class ApiError extends Error {
    constructor(message, status) {
        super(message);
        this.status = status;
    }
}

function headers(key) {
    const h = {"Content-Type": "application/json"};
    if (key) {
        h.Authorization = "Bearer " + key;
    }
    return h;
}

function sentence(text) {
    return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

async function refusal(response) {
    let message = "";
    try {
        const body = await response.json();
        message = (body.error && body.error.message) || "";
    } catch { /* no JSON: the status has to do */ }
    const wait = response.headers.get("Retry-After");
    message = sentence(message || "The server answered with status " + response.status);
    return new ApiError(message + (wait && !/again in/.test(message) ? " Try again in " + wait + " s." : ""),
        response.status);
}

export async function models(key) {
    const response = await fetch("v1/models", {headers: headers(key)});
    if (!response.ok) {
        throw await refusal(response);
    }
    return (await response.json()).data || [];
}

// Yields the data of each event; comments and other fields are passed over.
async function* events(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", data = [];
    for (;;) {
        const {value, done} = await reader.read();
        rest += value || "";
        let end;
        while ((end = rest.search(/\r\n|\n|\r(?!$)/)) >= 0) {
            const line = rest.slice(0, end);
            rest = rest.slice(end + (rest.startsWith("\r\n", end) ? 2 : 1));
            if (line.startsWith("data:")) {
                data.push(line.slice(line[5] === " " ? 6 : 5));
            } else if (line === "" && data.length) {
                yield data.join("\n");
                data = [];
            }
        }
        if (done) {
            return;
        }
    }
}

// Asks for an answer; on(delta) is called with {reasoning}, {content}, {finish} and {usage}.
// Throws ApiError, or AbortError when the signal was given.
export async function chat(request, key, signal, on) {
    const response = await fetch("v1/chat/completions", {
        method: "POST",
        headers: headers(key),
        body: JSON.stringify({...request, stream: true, stream_options: {include_usage: true}}),
        signal,
    });
    if (!response.ok) {
        throw await refusal(response);
    }
    let finished = false;
    for await (const data of events(response.body)) {
        if (data === "[DONE]") {
            return;
        }
        const chunk = JSON.parse(data);
        if (chunk.error) {
            throw new ApiError(sentence(chunk.error.message || "The server reported an error"), 500);
        }
        const choice = chunk.choices && chunk.choices[0];
        if (choice && choice.delta) {
            const {content, reasoning_content: reasoning} = choice.delta;
            if (reasoning) {
                on({reasoning});
            }
            if (content) {
                on({content});
            }
        }
        if (choice && choice.finish_reason) {
            finished = true;
            on({finish: choice.finish_reason});
        }
        if (chunk.usage) {
            on({usage: chunk.usage});
        }
    }
    if (!finished) {
        throw new ApiError("The connection ended before the answer did.", 0);
    }
}
