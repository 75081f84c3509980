"""One step of all ranks: `timeline` is the widget, `spans` the arithmetic, `lines` its lines."""
