// The room that a view takes on its page. Its width says which picture is seen. Its height must not follow every word:
// all that is beneath the view would be moved and painted again in each frame, for a line that comes and goes.

export class Room {
  constructor(view) {
    this.root = view.root;
    new ResizeObserver(([{ contentRect: { width }, borderBoxSize: [{ blockSize }] }]) => {
      this.height = blockSize;
      if (this.width !== width) view.fit();
      this.width = width;
    }).observe(this.root);
  }

  /** From here on the view gets no lower. */
  hold() {
    if (this.height) this.root.style.minHeight = `${this.height}px`;
  }

  /** The reader's hand rests: the view takes what it needs. */
  leave() {
    this.root.style.minHeight = "";
  }
}
