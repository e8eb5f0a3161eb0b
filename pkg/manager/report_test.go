package manager

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/pkg/volume"
)

// TestAStaleServerNeverTakesDataBack has a server answer from a cache that stands
// at an earlier time, and then catch up.
func TestAStaleServerNeverTakesDataBack(t *testing.T) {
	ref := secretRef("a")
	for _, tc := range []struct {
		name        string
		past        func(e *env) // the state of the server that lags behind
		now         func(e *env) // what has happened since
		noWatchList bool
	}{
		{"an older version", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) { e.api.put(secret("a", "2")) }, false},
		{"an older version in a list", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) { e.api.put(secret("a", "2")) }, true},
		{"absent", func(*env) {}, func(e *env) { e.api.put(secret("a", "2")) }, false},
		{"absent in a list", func(*env) {}, func(e *env) { e.api.put(secret("a", "2")) }, true},
		{"not deleted yet", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) { e.api.delete(ref) }, false},
		{"not recreated yet", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) {
			e.api.delete(ref)
			e.api.put(secret("a", "2"))
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				tc.past(e)
				e.api.set(func() { e.api.noWatchList = tc.noWatchList })
				past := e.api.rv
				tc.now(e)
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				synctest.Wait()
				want, wantErr := e.GetObject(ref)
				e.changes(ref)

				after(idleTime + time.Minute)
				e.api.set(func() { e.api.behind = past })
				e.wantGetErr(ref, ErrNotSynced) // restarts it
				for range 10 {
					after(time.Second)
					e.wantGetErr(ref, ErrNotSynced)
					e.wantGetErr(ref, errOlder)
					if n := e.api.watches(ref); n > 0 {
						t.Errorf("%d watches of refused answers are still open", n)
					}
				}
				if n := e.changes(ref); n != 0 {
					t.Errorf("heard of %d changes", n)
				}
				e.api.set(func() { e.api.behind = 0 })
				after(maxOwnPause)
				got, err := e.GetObject(ref)
				if fmt.Sprint(got, err) != fmt.Sprint(want, wantErr) {
					t.Errorf("got %v, %v, want %v, %v", got, err, want, wantErr)
				}
			})
		})
	}
}

// TestASyncedItemRefusesStaleReports feeds a run directly what no sane server sends.
func TestASyncedItemRefusesStaleReports(t *testing.T) {
	at := func(uid string, rv int, value string) *volume.Object {
		s := secret("a", value)
		s.UID, s.ResourceVersion = pod(uid).UID, strconv.Itoa(rv)
		return objectOf(t, s)
	}
	told := func(kind watch.EventType, obj *volume.Object) func(r *run) error {
		e := event{kind: kind, object: obj, resourceVersion: obj.ResourceVersion}
		return func(r *run) error { return r.set(e.present(), e.resourceVersion, true) }
	}
	listed := func(obj *volume.Object, resourceVersion string) func(r *run) error {
		return func(r *run) error { return r.set(obj, resourceVersion, true) }
	}
	for _, tc := range []struct {
		name   string
		report func(r *run) error
		want   string // value, or "" for absent
		err    error
	}{
		{"newer update", told(watch.Modified, at("u", 1001, "new")), "new", nil},
		{"older update", told(watch.Modified, at("u", 999, "old")), "now", errOlder},
		{"older update, fewer digits", told(watch.Modified, at("u", 99, "old")), "now", errOlder},
		{"older addition of another UID", told(watch.Added, at("x", 999, "old")), "now", errOlder},
		{"newer addition of another UID", told(watch.Added, at("x", 1001, "new")), "new", nil},
		{"older deletion", told(watch.Deleted, at("u", 999, "old")), "now", errOlder},
		{"newer deletion", told(watch.Deleted, at("u", 1001, "now")), "", nil},
		{"newer list", listed(at("u", 1001, "new"), "1002"), "new", nil},
		{"newer list without it", listed(nil, "1002"), "", nil},
		{"older list", listed(at("u", 998, "old"), "999"), "now", errOlder},
		{"older list without it", listed(nil, "999"), "now", errOlder},
		{"newer list with an older version", listed(at("u", 999, "old"), "1002"), "now", errOlder},
		{"list of a server that tells no version", listed(at("u", 1001, "new"), ""), "new", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				never := make(chan struct{})
				e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return never } })
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				synctest.Wait()
				r := e.item(ref).run
				if err := r.set(at("u", 1000, "now"), "1000", true); err != nil {
					t.Fatal(err)
				}
				if err := tc.report(r); !errors.Is(err, tc.err) {
					t.Errorf("got error %v, want %v", err, tc.err)
				}
				obj, err := e.GetObject(ref)
				switch {
				case tc.want == "" && !apierrors.IsNotFound(err):
					t.Errorf("got %v, %v, want NotFound", obj, err)
				case tc.want != "" && (err != nil || string(obj.Data["k"]) != tc.want):
					t.Errorf("got %v, %v, want %q", obj, err, tc.want)
				}
			})
		})
	}
}

func TestRepeatedStatesAreNotChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		if n := e.changes(ref); n != 1 {
			t.Errorf("first sync: heard of %d changes, want 1", n)
		}
		// An expired watch makes the reflector ask for the state again.
		after(2 * time.Second)
		e.api.set(func() { e.api.rv++; e.api.compacted = 1000 })
		e.api.closeWatches()
		after(4 * maxPause)
		if got := e.api.requests(ref); len(got) < 3 || !got[2].initial || got[2].rv != "101" {
			t.Errorf("got requests %v, want a third one, for a state not older than 101", got)
		}
		if n := e.changes(ref); n != 0 {
			t.Errorf("heard of %d changes after a list with the same object", n)
		}
	})
}

// TestOldFailuresAreForgotten has a watch fail, recover, and go idle.
func TestOldFailuresAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref, never := secretRef("a"), make(chan struct{})
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		after(2 * time.Second)
		e.api.set(func() { e.api.refuse = func(apiRequest) error { return syscall.ECONNREFUSED } })
		e.api.closeWatches()
		after(maxPause)
		e.api.set(func() { e.api.refuse = nil })
		after(idleTime + time.Minute)
		e.wantWatches(ref, 0)
		e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return never } })
		if _, err := e.GetObject(ref); !errors.Is(err, ErrNotSynced) || errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v, want nothing of an outage that is over", err)
		}
	})
}
