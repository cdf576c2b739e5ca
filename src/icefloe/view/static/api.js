// Requests to the JSON API and to slices.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function url(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params || {})) {
    if (value !== null && value !== undefined) query.set(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

async function answer(path, params, signal) {
  let response;
  try {
    response = await fetch(url(path, params), { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The viewer does not answer. Is `icefloe view` still running?", 0);
  }
  if (response.ok) return response;
  let message = `The viewer answered ${response.status}.`;
  try {
    message = (await response.json()).error || message;
  } catch (error) {
    // The answer was not JSON.
  }
  throw new ApiError(message, response.status);
}

export async function getJSON(path, params, signal) {
  return (await answer(`api/${path}`, params, signal)).json();
}

// A slice: { header, values }. Values are a Float32Array or a Float64Array.
export async function getSlice(params, signal) {
  const buffer = await (await answer("api/slice", params, signal)).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const type = header.data_type === "f4" ? Float32Array : Float64Array;
  return { header, values: new type(buffer, 4 + length) };
}
