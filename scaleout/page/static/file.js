// A file that a reader gave, dropped or chosen. It is read here and sent nowhere.

/** A field, hidden, that opens the reader's own choice of a JSON file: `take` gets it. */
export function chooser(take) {
  const input = Object.assign(document.createElement("input"), { type: "file", accept: ".json,application/json", hidden: true });
  input.addEventListener("change", () => {
    take(input.files[0]);
    input.value = ""; // the same file may be chosen again, after another run
  });
  return input;
}

/** Its text. An Error, in words for the reader, where it has more than `largest` bytes or is none: a folder. */
export async function textOf(file, largest, what) {
  if (file.size > largest) {
    throw new Error(`${file.name} has ${(file.size / 1e6).toPrecision(3)} MB: ${what} has at most ${largest / 1e6} MB.`);
  }
  try {
    return await file.text();
  } catch {
    throw new Error(`${file.name} cannot be read: choose a file, not a folder.`);
  }
}

/** What a JSON text has under these keys, as JSON; a text that is none as it is, for Python to say so. */
export function kept(text, keys) {
  try {
    const whole = JSON.parse(text) ?? {};
    return JSON.stringify(Object.fromEntries(keys.filter((key) => Object.hasOwn(whole, key)).map((key) => [key, whole[key]])));
  } catch {
    return text.trim();
  }
}
