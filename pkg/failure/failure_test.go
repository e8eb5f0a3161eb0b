package failure

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
	unsynced := Waiting(manager.ErrNotSynced)
	asked := Waiting(access.ErrPending)
	review := Outdated(ReasonUnavailable, errors.New("no answer"))
	missing := Final(ReasonNotFound, errors.New("no object"))
	right := Forbidden(errors.New("no right"), true)
	for name, test := range map[string]struct {
		found  List
		worst  *Failure
		text   string
		reason Reason
	}{
		"silent ones hide no fault":     {List{unsynced, review}, review, "no answer", ReasonUnavailable},
		"a right before all":            {List{review, missing, right}, right, "no right; no object; no answer", ReasonForbidden},
		"the author's fault before one": {List{review, missing}, missing, "no object; no answer", ReasonNotFound},
		"the first of a kind":           {List{review, Broken(0, errors.New("no disk"))}, review, "no answer; no disk", ReasonUnavailable},
		"the first reason":              {List{Broken(0, errors.New("no disk")), review}, nil, "no disk; no answer", ReasonUnavailable},
		"one text once":                 {List{review, Outdated(0, errors.New("no answer"))}, review, "no answer", ReasonUnavailable},
		"silent ones":                   {List{unsynced, asked}, asked, asked.Error() + "; " + unsynced.Error(), ReasonUnavailable},
	} {
		if got := test.found.Worst(); test.worst != nil && got != test.worst {
			t.Errorf("%s: %v decides", name, got)
		}
		if got := test.found.Public(); got.Error() != test.text || ReasonOf(got) != test.reason {
			t.Errorf("%s: %q for reason %d", name, got, ReasonOf(got))
		}
	}
	if (List{unsynced, asked}).IsUnanswered() || !(List{asked}).IsUnanswered() || (List{}).IsUnanswered() {
		t.Error("what is unanswered")
	}
	if (List{review, right}).IsFinal() || !(List{review, missing}).IsFinal() {
		t.Error("what is final")
	}
	if (List{review, missing}).IsRetried() || !(List{review, Broken(0, errors.New(""))}).IsRetried() {
		t.Error("what is retried")
	}
}

// TestManyFailures: the text about many failures is limited.
func TestManyFailures(t *testing.T) {
	var found List
	for i := range 256 {
		found = append(found, Outdated(0, fmt.Errorf("object %d", i)))
	}
	if text := found.Error(); !strings.HasSuffix(text, "; object 9; and 246 more") {
		t.Error(text)
	}
	if text := found[:MaxNames].Error(); !strings.HasSuffix(text, "; object 9") {
		t.Error(text)
	}
}
