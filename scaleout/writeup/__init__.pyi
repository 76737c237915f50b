from scaleout.writeup.document import Page as Page
from scaleout.writeup.drawings import drawing as drawing
from scaleout.writeup.tables import table as table
