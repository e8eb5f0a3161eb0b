package suite

import (
	"errors"

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
