package publisher

import (
	"fmt"
	"strings"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/payload"
)

// skippedText says which variables a volume's env files lack, or returns "". leftOut names those that a volume cannot know.
func skippedText(skipped []payload.Skipped, leftOut string) string {
	var texts []string
	for i, s := range skipped {
		if i == failure.MaxNames {
			texts = append(texts, fmt.Sprintf("and in %d more files", len(skipped)-i))
			break
		}
		s.Path = failure.Short(s.Path)
		if len(s.Invalid) > 0 {
			texts = append(texts, fmt.Sprintf("%s: skipped, because a %s file can't hold them: %s", s.Path, s.Format, failure.Few(s.Invalid)))
		}
		if len(s.Dependent) > 0 {
			texts = append(texts, fmt.Sprintf("%s: left out, because they refer to values that a volume can't know: %s", s.Path, failure.Few(s.Dependent)))
		}
	}
	if leftOut != "" {
		texts = append(texts, "left out, because a volume can't know them: "+leftOut)
	}
	return strings.Join(texts, "; ")
}
