package publisher

import (
	"fmt"
	"strings"

	"github.com/refvol/refvol/pkg/payload"
)

// skippedText says which variables a volume's env files lack, or returns "". leftOut names those that a volume cannot know.
func skippedText(skipped []payload.Skipped, leftOut string) string {
	var texts []string
	for i, s := range skipped {
		if i == fewNames {
			texts = append(texts, fmt.Sprintf("and in %d more files", len(skipped)-i))
			break
		}
		s.Path = short(s.Path)
		if len(s.Invalid) > 0 {
			texts = append(texts, fmt.Sprintf("%s: skipped, because a %s file can't hold them: %s", s.Path, s.Format, few(s.Invalid)))
		}
		if len(s.Dependent) > 0 {
			texts = append(texts, fmt.Sprintf("%s: left out, because they refer to values that a volume can't know: %s", s.Path, few(s.Dependent)))
		}
	}
	if leftOut != "" {
		texts = append(texts, "left out, because a volume can't know them: "+leftOut)
	}
	return strings.Join(texts, "; ")
}

// fewNames limits the names or files in a text for a pod's author, and nameLength the bytes of each name. Authors choose the variables, so
// there may be any number of them, and of any length.
const (
	fewNames   = 10
	nameLength = 64
)

// few returns the first names of a list and the number of the others.
func few(names []string) string {
	texts := make([]string, 0, fewNames)
	for _, name := range names[:min(len(names), fewNames)] {
		texts = append(texts, short(name))
	}
	text := strings.Join(texts, ", ")
	if more := len(names) - len(texts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// short returns a name, or the beginning of a long one.
func short(name string) string {
	if len(name) <= nameLength {
		return name
	}
	return strings.ToValidUTF8(name[:nameLength], "") + fmt.Sprintf("... (%d bytes)", len(name))
}
