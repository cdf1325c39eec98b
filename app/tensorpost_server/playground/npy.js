/** Reads and writes npy files (NumPy Enhancement Proposal 1: "The .npy format"). */

import { DATA_TYPES, byProperty, elementCount, tensor } from "./tensor.js";

const MAGIC = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];

/** @param {Uint8Array} file */
export function readNpy(file) {
  if (!MAGIC.every((byte, index) => file[index] === byte)) throw new Error("This is not an npy file.");
  const view = new DataView(file.buffer, file.byteOffset);
  const wide = file[6] > 1, start = wide ? 12 : 10;
  const end = start + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const head = new TextDecoder(file[6] > 2 ? "utf-8" : "latin1").decode(file.subarray(start, end));
  const descr = /'descr':\s*'([^']*)'/.exec(head)?.[1];
  const shape = (/'shape':\s*\(([^)]*)\)/.exec(head)?.[1] ?? "").split(",").filter((part) => part.trim()).map(Number);
  const type = byProperty("npy", descr);
  if (!type) throw new Error(`The page does not show the npy type ${descr ?? "of a structure"}; save another, for instance float32.`);
  if (/'fortran_order':\s*True/.test(head)) throw new Error("This npy file is in Fortran order; save np.ascontiguousarray(x).");
  return tensor(type, shape, file.subarray(end, end + elementCount(shape) * DATA_TYPES[type].bytes));
}

/** @returns {Uint8Array} the tensor as `numpy.save` writes it */
export function writeNpy({ type, shape, bytes }) {
  const sizes = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  const head = `{'descr': '${DATA_TYPES[type].npy}', 'fortran_order': False, 'shape': (${sizes}), }`;
  const start = Math.ceil((10 + head.length + 1) / 64) * 64;
  const file = new Uint8Array(start + bytes.length).fill(0x20, 10, start);
  file.set([...MAGIC, 1, 0]);
  new DataView(file.buffer).setUint16(8, start - 10, true);
  file.set(new TextEncoder().encode(head), 10);
  file[start - 1] = 0x0a;
  file.set(bytes, start);
  return file;
}
