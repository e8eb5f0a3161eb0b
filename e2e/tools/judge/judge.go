// Package judge has the judgements of the kind suite that need no cluster, so that tests can show each of them fail. It must not know where
// the texts come from.
package judge

import (
	"errors"
	"fmt"
	"strings"
)

// Control is the positive control of a search: it returns an error unless the text that was searched has all texts that must be in it. A search
// that finds nothing has proven nothing if it read the wrong place.
func Control(place, searched string, wants ...string) error {
	if searched == "" {
		return fmt.Errorf("the search of %s has read nothing", place)
	}
	var errs []error
	for _, want := range wants {
		if want == "" {
			errs = append(errs, fmt.Errorf("the search of %s wants an empty text, which is everywhere", place))
		} else if !strings.Contains(searched, want) {
			errs = append(errs, fmt.Errorf("the search of %s has read a text without %q: %.200q", place, want, searched))
		}
	}
	return errors.Join(errs...)
}

// atMostFailed limits the failed reads: one of so many. A process that doesn't run for two changes, in the middle of an open, finds that its
// generation is gone. The kubelet's own volumes have the same gap.
const atMostFailed = 1000

// Reads returns an error if a reader of a volume has seen more failures than such gaps explain. last is the error of the last read that failed.
func Reads(reads, failed int, last string) error {
	switch {
	case reads < 1 || failed < 0 || failed > reads:
		return fmt.Errorf("%d of %d reads failed: the reader has not read", failed, reads)
	case failed > 0 && !strings.Contains(last, "no such file or directory"):
		return fmt.Errorf("%d of %d reads failed, the last one by %q", failed, reads, last)
	case failed*atMostFailed > max(reads, atMostFailed):
		return fmt.Errorf("%d of %d reads failed, want at most one of %d: %s", failed, reads, atMostFailed, last)
	}
	return nil
}
