"""All ranks over time.

heatmap     the widget
lines       its lines
cells       values in sight, their scale and shades
scale       ranks to bands, values to shades
"""
