// perfetto.mjs FOLDER TRACE SQL: the answer of Perfetto's trace processor in FOLDER (make perfetto), a row of JSON a line.
//
// The engine is a web worker: it gets a port, and on it speaks TraceProcessorRpc in protobuf
// (protos/perfetto/trace_processor/trace_processor.proto, whose numbers the constants below are).
import fs from "node:fs";
import path from "node:path";
import v8 from "node:v8";
import vm from "node:vm";

v8.setFlagsFromString("--liftoff-only"); // else the time goes into optimizing an engine that answers once

const APPEND = 1, FINALIZE = 2, QUERY = 3;
const REQUEST = 2, FATAL = 5, TRACE_DATA = 101, QUERY_ARGS = 103, APPENDED = 201, QUERIED = 203;
const NULL = 1, VARINT = 2, FLOAT = 3, STRING = 4;

const [folder, trace, sql] = process.argv.slice(2);

function fail(why) {
    console.error(`perfetto: ${why}`);
    process.exit(1);
}

function varint(n) {
    const bytes = [];
    for (; n > 127; n = Math.floor(n / 128))
        bytes.push((n % 128) | 128);
    return Buffer.from([...bytes, n]);
}

const number = (field, n) => Buffer.concat([varint(field * 8), varint(n)]);
const bytes = (field, data) => Buffer.concat([varint(field * 8 + 2), varint(data.length), data]);

function readVarint(data, at) {
    let n = 0n;
    for (let shift = 0n;; shift += 7n) {
        const byte = data[at++];
        n |= BigInt(byte & 127) << shift;
        if (byte < 128)
            return [BigInt.asIntN(64, n), at];
    }
}

function* fieldsOf(data) {
    for (let at = 0; at < data.length;) {
        let key, value;
        [key, at] = readVarint(data, at);
        const kind = Number(key & 7n);
        if (kind === 0) {
            [value, at] = readVarint(data, at);
        } else {
            let size = kind === 1 ? 8 : 4;
            if (kind === 2) {
                [value, at] = readVarint(data, at);
                size = Number(value);
            }
            value = data.subarray(at, at += size);
        }
        yield [Number(key >> 3n), value];
    }
}

function varintsOf(data) {
    const all = [];
    for (let at = 0, n; at < data.length; all.push(n))
        [n, at] = readVarint(data, at);
    return all;
}

function* cellsOf(batch) {
    let kinds = [], varints = [], floats = Buffer.alloc(0), strings = [];
    for (const [field, value] of fieldsOf(batch)) {
        if (field === 1)
            kinds = varintsOf(value).map(Number);
        else if (field === 2)
            varints = varintsOf(value).map(Number);
        else if (field === 3)
            floats = value;
        else if (field === 5)
            strings = value.toString().split("\0");
    }
    for (const kind of kinds) {
        if (kind === VARINT) {
            yield varints.shift();
        } else if (kind === FLOAT) {
            yield floats.readDoubleLE();
            floats = floats.subarray(8);
        } else if (kind === STRING) {
            yield strings.shift();
        } else if (kind === NULL) {
            yield null;
        } else {
            fail(`a cell of kind ${kind}`);
        }
    }
}

let columns = [], cells = [];

function answered(result) {
    let isLast = false;
    for (const [field, value] of fieldsOf(result)) {
        if (field === 1)
            columns.push(value.toString());
        else if (field === 2 && value.length)
            fail(value.toString());
        else if (field === 3) {
            cells.push(...cellsOf(value));
            isLast = [...fieldsOf(value)].some(([f, v]) => f === 6 && v);
        }
    }
    if (!isLast)
        return;
    while (cells.length)
        process.stdout.write(JSON.stringify(cells.splice(0, columns.length)) + "\n");
    process.exitCode = 0;
}

function received(message) {
    for (const [field, value] of fieldsOf(message)) {
        if (field === FATAL)
            fail(value.toString());
        if (field === QUERIED)
            answered(value);
        if (field === APPENDED)
            for (const [f, v] of fieldsOf(value))
                if (f === 2 && v.length)
                    fail(v.toString());
    }
}

process.exitCode = 1; // until the last batch has arrived
const port = {
    postMessage(data) {
        for (const [, message] of fieldsOf(Buffer.from(data)))
            received(message);
    },
};
const self = {location: {href: ""}};

// The engine fetches its WebAssembly by this: at once, as only workers may.
class XMLHttpRequest {
    open(_, name) {
        this.file = path.join(folder, path.basename(name));
    }
    send() {
        this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
    }
}

Object.assign(globalThis, {self, XMLHttpRequest, location: self.location, importScripts() {}});
console.log = console.warn = console.error; // the engine's words are no rows
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
self.onmessage({data: {enginePort: port}});

let sequence = 0;
const asks = [[APPEND, bytes(TRACE_DATA, fs.readFileSync(trace))], [FINALIZE, Buffer.alloc(0)],
              [QUERY, bytes(QUERY_ARGS, bytes(1, Buffer.from(sql)))]];
setImmediate(() => { // after the promises by which the engine gets ready
    for (const [method, args] of asks) {
        const message = Buffer.concat([number(1, sequence++), number(REQUEST, method), args]);
        port.onmessage({data: new Uint8Array(bytes(1, message))});
    }
});
