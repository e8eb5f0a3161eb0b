package failure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// List is what a reconcile has found. An empty list means success. Lists never change.
type List []*Failure //nolint:errname // the package says what it is

// With returns a list that has some more failures. Each of them may be nil.
func (all List) With(more ...*Failure) List {
	next := slices.Clone(all)
	for _, f := range more {
		if f != nil {
			next = append(next, f)
		}
	}
	return next
}

// counted returns the failures that count, the gravest first: silent ones count only among themselves, so that they never hide a fault.
func (all List) counted() List {
	counting := slices.DeleteFunc(slices.Clone(all), (*Failure).IsSilent)
	if len(counting) == 0 {
		counting = slices.Clone(all)
	}
	slices.SortStableFunc(counting, func(a, b *Failure) int { return cmp.Compare(a.Kind, b.Kind) })
	return counting
}

// Worst returns the failure that decides, or nil if there is none.
func (all List) Worst() *Failure {
	if len(all) == 0 {
		return nil
	}
	return all.counted()[0]
}

// IsSilent reports whether the files have no fault.
func (all List) IsSilent() bool {
	return !slices.ContainsFunc(all, func(f *Failure) bool { return !f.IsSilent() })
}

// IsRetried reports whether a failure needs a retry.
func (all List) IsRetried() bool {
	return slices.ContainsFunc(all, func(f *Failure) bool { return f.Retry })
}

// IsFinal reports whether a failure ends a publish.
func (all List) IsFinal() bool {
	return slices.ContainsFunc(all, func(f *Failure) bool { return !f.Waits })
}

// IsUnanswered reports whether all failures, of which there are some, have no other information than that an answer is due.
func (all List) IsUnanswered() bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(f *Failure) bool { return !f.Unanswered })
}

// Error names the failures that count, each text once: an API server that is away gives one for each object.
func (all List) Error() string { return joined(all.counted(), (*Failure).Error) }

// Key distinguishes lists.
func (all List) Key() string { return joined(all.counted(), func(f *Failure) string { return f.Key }) }

// joined joins the distinct texts about some failures, and says how many more there are than MaxNames.
func joined(all List, say func(*Failure) string) string {
	var texts []string
	for _, f := range all {
		if text := say(f); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if more := len(texts) - MaxNames; more > 0 {
		texts = append(texts[:MaxNames], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the failures that count.
func (all List) Unwrap() (errs []error) {
	for _, f := range all.counted() {
		errs = append(errs, f)
	}
	return errs
}

// Public returns the error that a call answers with.
func (all List) Public() error {
	var reason Reason
	for _, f := range all.counted() {
		reason = cmp.Or(reason, f.Reason)
	}
	if reason == 0 {
		return all
	}
	return &Error{Reason: reason, Err: all}
}

// UnknownObjects returns the failure of a mounted volume that shows objects whose state is not known, because requests for them fail. why says
// so. It is not empty.
func UnknownObjects(why List) *Failure {
	return &Failure{
		Kind: Unknown, Err: fmt.Errorf("the files of some objects stay as they are: %w", why), Reason: why.Worst().Reason,
		Waits: true, Key: "unknown objects",
	}
}
