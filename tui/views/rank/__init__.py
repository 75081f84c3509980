"""All about one rank.

facts      the facts about the rank, as rows
histories  the course of the rank's numbers and the latencies of its all-reduces, in small
"""
