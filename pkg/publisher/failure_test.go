package publisher

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/manager"
)

// TestWhatCounts: the gravest of several failures counts, or else the first, and all are named.
func TestWhatCounts(t *testing.T) {
	unsynced := waiting(manager.ErrNotSynced)
	refused := waiting(fmt.Errorf("as the node: %w", manager.ErrNotSynced))
	refused.reason = ReasonForbidden
	review := unreviewed(errors.New("no answer"))
	if f := together([]*failure{unsynced, review}); f.silent {
		t.Error("silent beside a review that failed")
	}
	if f := together([]*failure{unsynced, refused}); f.reason != ReasonForbidden {
		t.Errorf("reason %d", f.reason)
	}
	first, second := unreviewed(errors.New("first")), unreviewed(errors.New("second"))
	first.reason, second.reason = ReasonNotFound, ReasonTooLarge
	for _, f := range []*failure{together([]*failure{first, second}), also(first, second)} {
		if f.reason != ReasonNotFound || !strings.Contains(f.Error(), "first") || !strings.Contains(f.Error(), "second") {
			t.Errorf("reason %d: %v", f.reason, f)
		}
	}
	if f := together([]*failure{first, second, unreviewed(errors.New("first"))}); strings.Count(f.Error(), "first") != 1 {
		t.Errorf("one text twice: %v", f)
	}
}
