// Answers questions to Perfetto's trace processor about a trace: node processor.js FOLDER TRACE SQL...
//
// FOLDER has the files of Perfetto's page, of which `engine_bundle.js` is a web worker with the processor as WebAssembly.
// It is spoken to in protos/perfetto/trace_processor/trace_processor.proto. Prints an array of rows for each question.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, trace, ...questions] = process.argv.slice(2);
const node = process;
const read = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));

// What a web worker has, as far as this one uses it.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.importScripts = () => {};
globalThis.location = { href: "file:///engine_bundle.js" };
globalThis.fetch = async (url) => new Response(read(url), { headers: { "Content-Type": "application/wasm" } });
globalThis.XMLHttpRequest = class {
  open(_, url) {
    this.url = url;
  }
  send() {
    this.status = 200;
    this.response = new Uint8Array(read(this.url)).buffer;
    this.onload?.();
  }
};
console.log = console.warn = (text) => node.stderr.write(`${text}\n`);
// Its loader must not take this for node.
globalThis.process = undefined;
vm.runInThisContext(read("engine_bundle.js").toString());
globalThis.process = node;

// Protocol buffers: fields with their numbers.
const [VARINT, DOUBLE, BYTES] = [0, 1, 2];
const varint = (value) => Buffer.from(value < 128 ? [value] : [value % 128 | 128, ...varint(Math.floor(value / 128))]);
const number = (field, value) => Buffer.concat([varint(field << 3 | VARINT), varint(value)]);
const bytes = (field, ...parts) => {
  const content = Buffer.concat(parts);
  return Buffer.concat([varint(field << 3 | BYTES), varint(content.length), content]);
};

class Reader {
  constructor(content) {
    this.content = content;
    this.place = 0;
  }
  get more() {
    return this.place < this.content.length;
  }
  varint() {
    let [value, shift, byte] = [0n, 0n, 0];
    do {
      byte = this.content[this.place++];
      value |= BigInt(byte & 127) << shift;
      shift += 7n;
    } while (byte & 128);
    return Number(BigInt.asIntN(64, value));
  }
  double() {
    this.place += 8;
    return this.content.readDoubleLE(this.place - 8);
  }
  bytes() {
    const size = this.varint();
    this.place += size;
    return this.content.subarray(this.place - size, this.place);
  }
  fields() {
    const found = {};
    while (this.more) {
      const key = this.varint();
      const value = { [VARINT]: () => this.varint(), [DOUBLE]: () => this.double(), [BYTES]: () => this.bytes() }[key & 7]();
      (found[key >> 3] ??= []).push(value);
    }
    return found;
  }
}

const fields = (content) => new Reader(content).fields();
const all = (parts, take) => {
  const found = [];
  for (const part of parts ?? []) for (const reader = new Reader(part); reader.more; ) found.push(take(reader));
  return found;
};

function rowsOf(result, names) {
  if (result[2]) throw new Error(result[2][0].toString());
  const rows = [];
  for (const batch of (result[3] ?? []).map(fields)) {
    const values = {
      1: [],
      2: all(batch[2], (reader) => reader.varint()),
      3: all(batch[3], (reader) => reader.double()),
      4: batch[5]?.[0].toString().split("\0") ?? [],
    };
    const kinds = all(batch[1], (reader) => reader.varint());
    kinds.forEach((kind, place) => {
      if (place % names.length === 0) rows.push({});
      rows.at(-1)[names[place % names.length]] = values[kind].shift() ?? null;
    });
  }
  return rows;
}

const [APPEND, FINALIZE, QUERY] = [1, 2, 3];
const { port1, port2 } = new MessageChannel();
let sent = 0;
const ask = (method, ...content) => port1.postMessage(new Uint8Array(bytes(1, number(1, ++sent), number(2, method), ...content)));
const answers = [];
let names = [];

port1.onmessage = (event) => {
  for (const message of fields(Buffer.from(event.data))[1] ?? []) {
    const answer = fields(message);
    if (answer[5]) throw new Error(answer[5][0].toString());
    for (const append of answer[201] ?? []) {
      const error = fields(append)[2];
      if (error) throw new Error(error[0].toString());
    }
    for (const part of answer[203] ?? []) {
      const result = fields(part);
      if (result[1]) {
        names = result[1].map(String);
        answers.push([]);
      }
      answers.at(-1).push(...rowsOf(result, names));
      const isLast = (result[3] ?? []).some((batch) => fields(batch)[6]);
      if (isLast && answers.length === questions.length) {
        node.stdout.write(JSON.stringify(answers), () => node.exit(0));
      }
    }
  }
};
self.onmessage({ data: port2 });
ask(APPEND, bytes(101, fs.readFileSync(trace)));
ask(FINALIZE);
for (const question of questions) ask(QUERY, bytes(103, bytes(1, Buffer.from(question))));
