package status

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
)

// Stream is a Report of which each part is created while it is written. It never holds the whole report. Its objects and volumes have indices
// only, without what these mean.
type Stream struct {
	Header

	Objects iter.Seq[*Object]
	Volumes iter.Seq[*Volume]
	Others  []PodVolumes
}

// Write writes the report as JSON. It ends with the first error of w.
func (s *Stream) Write(w io.Writer) error {
	header, err := json.Marshal(s.Header)
	if err != nil {
		return fmt.Errorf("encode the status: %w", err)
	}
	out := bufio.NewWriter(w)
	_, _ = out.Write(header[:len(header)-1]) // without the brace. Flush returns the error.
	err = writeList(out, "objects", s.Objects)
	if err == nil {
		err = writeList(out, "volumes", s.Volumes)
	}
	if err == nil && len(s.Others) > 0 {
		err = writeList(out, "others", slices.Values(s.Others))
	}
	if err == nil {
		_, _ = out.WriteString("}\n")
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}

// writeList writes a list as the next field of a JSON object, with each element on a line of its own.
func writeList[T any](w *bufio.Writer, name string, elements iter.Seq[T]) error {
	encoder, separator := json.NewEncoder(w), ""
	_, _ = fmt.Fprintf(w, ",%q:[", name) // w keeps the error for the next write
	for element := range elements {
		_, _ = w.WriteString(separator)
		if err := encoder.Encode(element); err != nil {
			return err
		}
		separator = ","
	}
	_, err := w.WriteString("]")
	return err
}
