package failure

import (
	"fmt"
	"strings"
)

// MaxNames limits the names, files or failures in a text for a pod's author, and MaxNameLength the bytes of each name. Authors choose the
// names, so there may be any number of them, and of any length.
const (
	MaxNames      = 10
	MaxNameLength = 64
)

// Few returns the first names of a list, each shortened, and the number of the others.
func Few(names []string) string {
	texts := make([]string, 0, MaxNames)
	for _, name := range names[:min(len(names), MaxNames)] {
		texts = append(texts, Short(name))
	}
	text := strings.Join(texts, ", ")
	if more := len(names) - len(texts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Short returns a name, or the beginning of a long one.
func Short(name string) string {
	if len(name) <= MaxNameLength {
		return name
	}
	return strings.ToValidUTF8(name[:MaxNameLength], "") + fmt.Sprintf("... (%d bytes)", len(name))
}
