package writer

import (
	"strings"
	"testing"
)

// TestStep: Step is called before each change that readers may see, and before nothing else. What it is called before has not happened yet.
func TestStep(t *testing.T) {
	for _, c := range []struct {
		name          string
		inPlace       bool
		first, second string
	}{
		{"atomic", false, "switch ..data, make a link, make a link", "name the generation, switch ..data, make a link, remove a link"},
		{"in place", true, "switch ..data, make a link, make a link", "renew the record, empty a file, rewrite a file, truncate a file, place a file, renew the record, make a link"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVolume(t)
			var steps []string
			step := func(change string) { steps = append(steps, change) }
			o := withAttributes(t)
			o.InPlace, o.Step = c.inPlace, step
			w := New(o)
			for _, round := range []struct{ want, a, other string }{{c.first, "1", "b"}, {c.second, "2", "c"}} {
				steps = nil
				next := tree(file("a", round.a), file(round.other, "1"))
				next.Record = "record " + round.a + "\n"
				_, err := w.Write(t.Context(), v.root, next)
				v.must(err)
				if got := strings.Join(steps, ", "); got != round.want {
					t.Errorf("steps %s\nwant  %s", got, round.want)
				}
			}
		})
	}
}
