"""The page of one run or several, and the data card that goes with stitched data."""
