"""All ranks over time.

heatmap  the widget
lines    title, cells, axis, legend and the values at the cursor, as lines
cells    values in sight, their scale and shades
scale    ranks to bands, values to shades
"""
