/** Turns files and samples into tensors. Pictures become N × C × H × W, as DirectML orders them. */

import { readNpy } from "./npy.js";
import { tensor, tensorOf } from "./tensor.js";

const PICTURE_TYPES = { float32: (byte) => byte / 255, float16: (byte) => byte / 255, uint8: (byte) => byte };

export const isPictureType = (type) => type in PICTURE_TYPES;

/** @returns {Promise<object>} {name, pixels} for a picture, {name, tensor} for an npy file */
export async function readFile(file, longestSide) {
  const start = new Uint8Array(await file.slice(0, 6).arrayBuffer());
  if (start[0] === 0x93 && start[1] === 0x4e) {
    return { name: file.name, tensor: readNpy(new Uint8Array(await file.arrayBuffer())) };
  }
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image", premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch {
    throw new Error(`${file.name} is neither an npy file nor a picture that this browser can read.`);
  }
  const pixels = pixelsOf(bitmap, longestSide);
  return { name: file.name, pixels, mediaType: file.type, reduced: pixels.width < bitmap.width, original: `${bitmap.width} × ${bitmap.height}` };
}

function pixelsOf(picture, longestSide) {
  const scale = longestSide ? Math.min(1, longestSide / Math.max(picture.width, picture.height)) : 1;
  const width = Math.max(1, Math.round(picture.width * scale)), height = Math.max(1, Math.round(picture.height * scale));
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

/** N × C × H × W of the type: floats from 0 to 1, integers from 0 to 255. Transparent pictures have 4 channels. */
export function pictureTensor({ data, width, height }, type) {
  const count = width * height, convert = PICTURE_TYPES[type];
  let opaque = true;
  for (let pixel = 0; pixel < count && opaque; pixel++) opaque = data[4 * pixel + 3] === 255;
  const channels = opaque ? 3 : 4, values = new Float32Array(channels * count);
  for (let channel = 0; channel < channels; channel++)
    for (let pixel = 0; pixel < count; pixel++) values[channel * count + pixel] = convert(data[4 * pixel + channel]);
  const shape = [1, channels, height, width];
  if (type === "float32") return tensor(type, shape, new Uint8Array(values.buffer));
  return type === "uint8" ? tensor(type, shape, Uint8Array.from(values)) : tensorOf(type, shape, Array.from(values));
}

/** Circles that grow finer outwards, beside lines of one pixel: what resampling does wrong is seen here first. */
export function testCard(size = 128) {
  const picture = new ImageData(size, size);
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++) {
      const u = x - size / 2 + 0.5, v = y - size / 2 + 0.5;
      const rings = 127.5 + 127.5 * Math.cos((Math.PI * (u * u + v * v)) / size);
      const lines = ((x < size / 2 ? x : y) % 2) * 255;
      const tone = y < size / 8 || y >= size - size / 8 ? lines : rings;
      picture.data.set([tone, tone, tone, 255], 4 * (y * size + x));
    }
  return picture;
}

/** The 2 × 3 tensor of the example in DirectML's documentation of Tile. */
export const smallNumbers = () => tensorOf("float32", [1, 1, 2, 3], [1, 2, 3, 4, 5, 6]);
