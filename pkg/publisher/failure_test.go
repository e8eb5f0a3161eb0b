package publisher

import (
	"errors"
	"fmt"
	"testing"

	"github.com/refvol/refvol/pkg/manager"
)

// TestWhatCounts tests failures that belong together.
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
}
