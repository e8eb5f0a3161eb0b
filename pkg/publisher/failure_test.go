package publisher

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/manager"
)

// TestWhatCounts: the gravest of several failures decides, or else the first. All that are not silent are named, each text once.
func TestWhatCounts(t *testing.T) {
	unsynced := waiting(manager.ErrNotSynced)
	asked := waiting(access.ErrPending)
	review := outdated(ReasonUnavailable, errors.New("no answer"))
	missing := final(ReasonNotFound, errors.New("no object"))
	right := forbidden(errors.New("no right"), true)
	for name, test := range map[string]struct {
		found  failures
		worst  *failure
		text   string
		reason Reason
	}{
		"silent ones hide no fault":     {failures{unsynced, review}, review, "no answer", ReasonUnavailable},
		"a right before all":            {failures{review, missing, right}, right, "no right; no object; no answer", ReasonForbidden},
		"the author's fault before one": {failures{review, missing}, missing, "no object; no answer", ReasonNotFound},
		"the first of a kind":           {failures{review, broken(0, errors.New("no disk"))}, review, "no answer; no disk", ReasonUnavailable},
		"the first reason":              {failures{broken(0, errors.New("no disk")), review}, nil, "no disk; no answer", ReasonUnavailable},
		"one text once":                 {failures{review, outdated(0, errors.New("no answer"))}, review, "no answer", ReasonUnavailable},
		"silent ones":                   {failures{unsynced, asked}, asked, asked.Error() + "; " + unsynced.Error(), ReasonUnavailable},
	} {
		if got := test.found.worst(); test.worst != nil && got != test.worst {
			t.Errorf("%s: %v decides", name, got)
		}
		if got := test.found.public(); got.Error() != test.text || ReasonOf(got) != test.reason {
			t.Errorf("%s: %q for reason %d", name, got, ReasonOf(got))
		}
	}
	if (failures{unsynced, asked}).isUnanswered() || !(failures{asked}).isUnanswered() || (failures{}).isUnanswered() {
		t.Error("what is unanswered")
	}
	if (failures{review, right}).isFinal() || !(failures{review, missing}).isFinal() {
		t.Error("what is final")
	}
	if (failures{review, missing}).isRetried() || !(failures{review, broken(0, errors.New(""))}).isRetried() {
		t.Error("what is retried")
	}
}

// TestManyFailures: the text about many failures is limited.
func TestManyFailures(t *testing.T) {
	var found failures
	for i := range 256 {
		found = append(found, outdated(0, fmt.Errorf("object %d", i)))
	}
	if text := found.Error(); !strings.HasSuffix(text, "; object 9; and 246 more") {
		t.Error(text)
	}
}
