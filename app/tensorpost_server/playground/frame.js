/** Reads and writes frames: the safetensors layout, for any number of tensors (docs/wire.md, "Frame"). */

import { DATA_TYPES, byProperty, tensor } from "./tensor.js";

/**
 * @param {Record<string, object>} tensors by name, in order
 * @param {Record<string, string>} metadata texts by name
 */
export function writeFrame(tensors, metadata = {}) {
  let end = 0;
  const entries = Object.entries(tensors).map(([name, { type, shape, bytes }]) => [
    name,
    { dtype: DATA_TYPES[type].frame, shape, data_offsets: [end, (end += bytes.length)] },
  ]);
  const head = new TextEncoder().encode(JSON.stringify({ ...(Object.keys(metadata).length && { __metadata__: metadata }), ...Object.fromEntries(entries) }));
  const start = Math.ceil((8 + head.length) / 64) * 64;
  const file = new Uint8Array(start + end).fill(0x20, 8, start);
  new DataView(file.buffer).setUint32(0, start - 8, true);
  file.set(head, 8);
  for (const [name, entry] of entries) file.set(tensors[name].bytes, start + entry.data_offsets[0]);
  return file;
}

/**
 * @param {Uint8Array} file
 * @returns {Record<string, object>} the tensors that this page can show, by name
 */
export function readFrame(file) {
  const start = 8 + new DataView(file.buffer, file.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(file.subarray(8, start)));
  const found = {};
  for (const [name, { dtype, shape, data_offsets: [begin, end] = [] }] of Object.entries(head)) {
    const type = byProperty("frame", dtype);
    if (name !== "__metadata__" && type) found[name] = tensor(type, shape, file.subarray(start + begin, start + end));
  }
  return found;
}
