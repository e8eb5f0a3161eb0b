package suite

import (
	"errors"
	"strings"
	"testing"

	judged "github.com/refvol/refvol/internal/history"
)

// judgeTold returns what is wrong with what a reader told of files whose texts only grow in byte order.
func judgeTold(all []told) error {
	h := judged.New()
	for _, one := range all {
		h.Declare(judged.Volume{ID: one.File, Required: []string{one.File}})
		seen := &judged.Seen{Shown: map[string]judged.Version{}}
		if one.Error != "" {
			seen.Wrong = []string{one.Error}
		} else {
			seen.Shown[one.File] = judged.Version{UID: one.Text}
		}
		h.AddAt(judged.Event{Kind: judged.Saw, At: one.At, Begin: one.At, Volume: one.File, Seen: seen})
	}
	var errs []error
	for _, v := range h.Check() {
		errs = append(errs, errors.New(v.String()))
	}
	return errors.Join(errs...)
}

// TestJudge: a text that is smaller than the one before is found, in its own file only, and so is a read that failed.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		want string
		told []told
	}{
		{"", []told{{File: "a", Text: "1"}, {File: "b", Text: "0"}, {File: "a", Text: "2"}}},
		{"goes back", []told{{File: "a", Text: "2"}, {File: "b", Text: "0"}, {File: "a", Text: "1"}}},
		{"no such file", []told{{File: "a", Text: "2"}, {File: "a", Error: "no such file"}}},
	} {
		err := judgeTold(c.told)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.told, err, c.want)
		}
	}
}
