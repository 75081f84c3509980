"""One step of all ranks: `timeline` is the widget, `spans` what is drawn where, `lines` its lines."""
