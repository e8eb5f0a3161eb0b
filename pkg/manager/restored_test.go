package manager

import (
	"errors"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// restore simulates a restore of the server's etcd to a version, with its revision bumped by bump. As with etcdutl, the objects' own
// versions stay as they were in the backup.
func (e *env) restore(past, bump int) {
	e.api.set(func() {
		for ref, changes := range e.api.history {
			for len(changes) > 0 && changes[len(changes)-1].rv > past {
				changes = changes[:len(changes)-1]
			}
			e.api.history[ref] = changes
		}
		e.api.compacted = max(e.api.rv+1, past+bump) // otherwise a watch waits for the requested version
		e.api.rv = past + bump
	})
	e.api.closeWatches()
}

func (e *env) wantOlderAnswer(want *OlderAnswer) {
	e.t.Helper()
	got := e.status().OlderAnswer
	if (got == nil) != (want == nil) || got != nil && *got != *want {
		e.t.Errorf("the older answer is %+v, want %+v", got, want)
	}
}

// TestOlderAnswer has an API server whose etcd was restored from a backup: the known state stays, and the refused answer is reported until
// something newer comes.
func TestOlderAnswer(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		old := e.api.put(secret("a", "1"))
		past := e.api.rv
		v := e.api.put(secret("a", "2"))
		e.known(ref)
		e.wantOlderAnswer(nil)
		e.restore(past, 0)
		for i := range 3 {
			e.ask(ref)
			if n := e.changes(ref); (n == 1) != (i == 0) || n > 1 {
				t.Errorf("%d changes were reported at look %d", n, i)
			}
			if err := e.DenialErr(ref); !errors.Is(err, errOlder) {
				t.Errorf("DenialErr = %v", err)
			}
			e.wantOlderAnswer(&OlderAnswer{Object: old, ResourceVersion: old.ResourceVersion, Known: v.ResourceVersion})
			e.wantKnown(ref, v, "2")
		}
		e.restore(past, 1000)
		v = e.api.put(secret("a", "3"))
		e.ask(ref)
		e.wantOlderAnswer(nil)
		e.wantDenied(ref, false)
		e.wantKnown(ref, v, "3")
	})
}

// TestOlderAnswerOfAnUnchangedObject: a watch shows how old the whole answer is. The object may then have the known version, or not exist.
func TestOlderAnswerOfAnUnchangedObject(t *testing.T) {
	inBubble(t, func(_ *testing.T, e *env) {
		ref := secretRef("a")
		past := e.api.rv
		v := e.api.put(secret("a", "1"))
		e.api.set(func() { e.api.rv = past + 10 })
		e.known(ref)
		e.restore(past+5, 0)
		e.ask(ref)
		e.wantOlderAnswer(&OlderAnswer{Object: v, ResourceVersion: "105", Known: "110"})
		e.restore(past, 0)
		e.ask(ref)
		e.wantOlderAnswer(&OlderAnswer{ResourceVersion: "100", Known: "110"})
	})
}

// TestCuresOfARestore: docs/reliability.md says what ends the refusal of older answers. For an object that did not change after the backup,
// a bumped revision is enough. An object that changed after it must be written again. A new pod gets the state that the manager knows.
func TestCuresOfARestore(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		same := e.api.put(secret("a", "1"))
		past := e.api.rv
		e.known(ref)
		e.restore(past, 1000)
		e.ask(ref)
		e.wantOlderAnswer(nil)
		e.wantKnown(ref, same, "1")

		past = e.api.rv
		newest := e.api.put(secret("a", "2"))
		e.ask(ref)
		e.wantKnown(ref, newest, "2")
		e.restore(past, 1000)
		e.ask(ref)
		if e.status().OlderAnswer == nil {
			t.Error("an object that has its old version is taken over")
		}
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		e.ask(ref)
		e.wantKnown(ref, newest, "2")
		_, err := e.Manager.GetObject(pod("second"), ref)
		if e.detection != Watch && (!errors.Is(err, errOlder) || !errors.Is(err, ErrNotSynced)) {
			t.Errorf("the new pod gets %v", err)
		}
		again := e.api.put(secret("a", "1"))
		e.ask(ref)
		e.wantOlderAnswer(nil)
		e.wantKnown(ref, again, "1")
	})
}
