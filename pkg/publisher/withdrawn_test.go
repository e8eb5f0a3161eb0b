package publisher

import (
	"maps"
	"slices"
	"testing"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// wantWithdrawn checks which objects the status reports as withdrawn.
func (e *env) wantWithdrawn(refs ...volume.Ref) {
	e.Helper()
	s := e.status()
	got := slices.Collect(maps.Keys(s.Withdrawn))
	if len(got) != len(refs) || slices.ContainsFunc(refs, func(ref volume.Ref) bool { return !s.Withdrawn[ref] }) {
		e.Errorf("withdrawn: %v, want %v", got, refs)
	}
	for ref := range s.Withdrawn {
		if s.Shown[ref].UID != "" {
			e.Errorf("%s is withdrawn, and shown at %v", ref, s.Shown[ref])
		}
	}
}

// TestWithdrawnIsTold: a refused object is reported as withdrawn once no file of it remains, also in superseded generations, until the pod
// may read it again.
func TestWithdrawnIsTold(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
				r.Attributes["writeStrategy"] = strategy
				e.publish(r)
				e.wantWithdrawn()
				access.grant(sharedConfig)
				e.takeUntil(func() bool {
					s := e.status()
					if len(s.Withdrawn) > 0 && e.generations(r) != 1 {
						t.Errorf("%v is withdrawn, and %d generations are there", s.Withdrawn, e.generations(r))
					}
					return len(s.Withdrawn) > 0
				})
				if files := e.mounts.files(r.Target); files["password"] != "" {
					t.Error("the file is there")
				}
				e.wantWithdrawn(sharedSecret)

				e.restart() // a new process verifies that
				e.confirm()
				after(2 * pruneTime)
				e.wantWithdrawn(sharedSecret)

				e.objects.put(configMap("app"), "a", "2") // the last generation has no file of it either
				e.settle()
				if files := e.mounts.files(r.Target); files["a"] != "2" {
					t.Error("the other object's change is not shown")
				}
				e.wantWithdrawn(sharedSecret)

				access.grant(sharedConfig, sharedSecret)
				after(reviewTime)
				e.settle()
				e.wantWithdrawn()
				e.wantFiles(r, "a", "2", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// TestAFailedWithdrawalIsNotTold: it is not reported while the files cannot be changed, nor after a write that has created them again. It
// is reported when a later try succeeds.
func TestAFailedWithdrawalIsNotTold(t *testing.T) {
	t.Run("the volume can't be opened", func(t *testing.T) {
		acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
			e.publish(r)
			access.grant()
			e.mounts.failAt("Reopen", errFault)
			after(2 * reviewTime)
			e.settle()
			e.wantWithdrawn()
			e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
			e.mounts.failAt("Reopen", nil)
			after(reviewTime)
			e.settle()
			e.wantWithdrawn(sharedSecret, sharedConfig)
			e.wantFiles(r, "a", "1", "app.env", "OWN=1\n")
		})
	})
	t.Run("a write that failed has put the file there again", func(t *testing.T) {
		acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
			r.Attributes["writeStrategy"] = "InPlace"
			e.publish(r)
			access.grant(sharedConfig)
			after(reviewTime + 2*pruneTime)
			e.settle()
			e.wantWithdrawn(sharedSecret)
			e.writes.set(nil, func() error { return errFault })
			access.grant(sharedConfig, sharedSecret)
			after(reviewTime)
			e.settle()
			e.wantWithdrawn()
			e.mounts.failAt("IsMountedAt", errFault)
			e.mounts.failAt("Reopen", errFault)
			access.grant(sharedConfig)
			after(2 * reviewTime)
			e.settle()
			e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
			e.wantWithdrawn()
			e.mounts.failAt("Reopen", nil)
			after(reviewTime)
			e.settle()
			e.wantWithdrawn(sharedSecret)
		})
	})
}

// TestAWithdrawalWithoutAnUpdateIsTold: it is reported even if another object cannot be read. An object that is allowed again is not.
func TestAWithdrawalWithoutAnUpdateIsTold(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		access.grant(sharedConfig)
		after(reviewTime + 2*pruneTime)
		e.settle()
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
		e.wantWithdrawn(sharedSecret)

		// The pod may read it again: the volume shows it, whatever the other object does.
		access.grant(sharedConfig, sharedSecret)
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n", "password", "p1")
		e.wantWithdrawn()
	})
}

// TestWithdrawnWaitsForTheLastGeneration: a superseded generation may still have a file of the object.
func TestWithdrawnWaitsForTheLastGeneration(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant(sharedConfig)
		e.takeUntil(func() bool { return e.generations(r) == 2 })
		e.mounts.failAt("IsMountedAt", errFault)
		e.mounts.failAt("Reopen", errFault) // so that nothing can be pruned
		after(10 * pruneTime)
		if e.wantWithdrawn(); e.generations(r) != 2 {
			t.Errorf("%d generations", e.generations(r))
		}
		e.mounts.failAt("IsMountedAt", nil)
		e.mounts.failAt("Reopen", nil)
		after(reviewTime)
		e.settle()
		e.wantWithdrawn(sharedSecret)
	})
}

// TestWithdrawnWithoutAFile: an object that no file shows is withdrawn as soon as it is refused.
func TestWithdrawnWithoutAFile(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.objects.remove(sharedSecret) // it is optional
		e.publish(r)
		e.rest()
		access.grant(sharedConfig)
		e.takeUntil(func() bool { return e.status().Condition == failure.RefForbidden })
		e.wantWithdrawn(sharedSecret)
	})
}
