"""Pictures for the cases, written as small files: the same bytes each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.models.tasks import clip, drawing


class Pictures:
    """Writes pictures into a directory; every method returns the path of a file as a string."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def _saved(self, image: Any, name: str, **how: Any) -> str:
        path = self.directory / name
        image.save(path, **how)
        return str(path)

    def drawing(self, colour: str, shape: str, *, width: int = 72, height: int = 64, seed: int = 0) -> str:
        image = drawing(colour, shape, width=width, height=height, seed=seed)
        return self._saved(image, f"{colour}-{shape}-{width}x{height}-{seed}.png")

    def turned(self, colour: str, shape: str, *, width: int, height: int, seed: int) -> str:
        """Lying on its side, with the EXIF note that says so (6: turn it clockwise to look at it)."""
        from PIL import Image

        image = drawing(colour, shape, width=height, height=width, seed=seed).transpose(Image.Transpose.ROTATE_90)
        exif = Image.Exif()
        exif[0x0112] = 6
        return self._saved(image, f"{colour}-{shape}-turned-{seed}.jpg", exif=exif, quality=90)

    def transparent(self, colour: str, shape: str, *, width: int, height: int, seed: int) -> str:
        """With an alpha channel, half of it see-through."""
        image = drawing(colour, shape, width=width, height=height, seed=seed).convert("RGBA")
        image.putalpha(128)
        return self._saved(image, f"{colour}-{shape}-rgba-{seed}.png")

    def palette(self, colour: str, shape: str, *, width: int, height: int, seed: int) -> str:
        image = drawing(colour, shape, width=width, height=height, seed=seed).quantize(16)
        return self._saved(image, f"{colour}-{shape}-palette-{seed}.png")

    def scaled(self, colour: str, shape: str, size: tuple[int, int], kind: str = "png") -> str:
        """A drawing blown up or shrunk to `size`; flat areas, so that the file stays small. Some decoders shrink large
        JPEGs ("jpg") while they read them."""
        from PIL import Image

        width, height = size
        image = drawing(colour, shape, width=96, height=64).resize(size, Image.Resampling.NEAREST)
        how: dict[str, Any] = {"quality": 60} if kind == "jpg" else {"optimize": True}
        return self._saved(image, f"{colour}-{shape}-{width}x{height}.{kind}", **how)

    def solid(self, colour: str, size: tuple[int, int]) -> str:
        """One colour: of some sizes the pixels are the same bytes."""
        from PIL import Image

        return self._saved(Image.new("RGB", size, colour), f"{colour}-{size[0]}x{size[1]}.png")

    def changed_below(self, path: str) -> str:
        """Another picture of the same size, which begins alike: its lower half is upside down."""
        from PIL import Image

        with Image.open(path) as image:
            whole = image.convert("RGB")
        box = (0, whole.height // 2, *whole.size)
        whole.paste(whole.crop(box).transpose(Image.Transpose.FLIP_TOP_BOTTOM), box)
        return self._saved(whole, f"{Path(path).stem}-changed.png")

    def frames(self, first: str, second: str, *, frames: int, change: int) -> list[str]:
        """A clip as files of its frames, in order."""
        every = clip(first, second, frames=frames, change=change)
        return [self._saved(frame, f"{first}-{second}-{index}.png") for index, frame in enumerate(every)]

    def clip(self, first: str, second: str, *, frames: int, change: int, rate: float) -> str:
        """As a file, `rate` frames a second."""
        import cv2
        import numpy

        path = str(self.directory / f"{first}-{second}-{frames}.mp4")
        every = clip(first, second, frames=frames, change=change)
        writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"mp4v"), rate, every[0].size)
        for frame in every:
            writer.write(numpy.asarray(frame)[:, :, ::-1])
        writer.release()
        return path

    def photograph(self) -> str:
        """A real one: the portrait that matplotlib ships, in the size of a thumbnail."""
        from matplotlib import cbook
        from PIL import Image

        with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as image:
            return self._saved(image.convert("RGB").resize((128, 150)), "photograph.jpg", quality=80)
