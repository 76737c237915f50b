// Points of a field (scaleout/draw/field.py) glide: each goes from where the point of its name was. They are not nodes,
// for there are hundreds of them, but places in a few paths, so that a frame changes a few texts.

const PLACE = /M(-?[\d.]+ -?[\d.]+)/g;

/** Where the points of a picture are by name, [[name, "x y"], ...], in the order in which they are drawn. */
function named(field) {
  return field.dataset.points.split(";").filter(Boolean).map((one) => {
    const [x, y, ...values] = one.slice(0, one.indexOf("|")).split(" ");
    return [values.join(" "), `${x} ${y}`];
  });
}

/** What moves in the paths of a picture whose points were elsewhere: [{node, name, at, end}, ...]. was: `data-points` of
 * the picture before. */
export function glides(box, was) {
  const field = box.querySelector("[data-field]");
  if (!field || !was || was === field.dataset.points) return [];
  const before = new Map(named({ dataset: { points: was } }));
  const here = new Map(); // by place: where the points come from that lie there
  for (const [name, place] of named(field)) here.set(place, [...(here.get(place) ?? []), before.get(name) ?? place]);
  return [...box.querySelectorAll("[data-cloud]")].map((node) => {
    const end = node.getAttribute("d");
    const ways = [...end.matchAll(PLACE)].map(([, place]) => {
      const [from, to] = [here.get(place)?.shift() ?? place, place].map((one) => one.split(" ").map(Number));
      return [from[0], from[1], to[0] - from[0], to[1] - from[1]];
    });
    const at = (part) => {
      let i = 0;
      return end.replace(PLACE, () => {
        const [x, y, dx, dy] = ways[i];
        i += 1;
        return `M${(x + dx * part).toFixed(1)} ${(y + dy * part).toFixed(1)}`;
      });
    };
    return { node, name: "d", at, end };
  });
}
