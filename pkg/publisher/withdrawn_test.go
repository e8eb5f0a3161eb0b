package publisher

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
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
	for _, strategy := range strategies {
		acrossInBubbleOf(t, strategy, func(e *env, access *fakeAccess, r binding.Request) {
			r.Attributes["writeStrategy"] = strategy
			e.publish(r)
			e.wantWithdrawn()
			access.grant(sharedConfig)
			e.takeUntil(func() bool {
				s := e.status()
				if len(s.Withdrawn) > 0 && e.generations(r) != 1 {
					e.Errorf("%v is withdrawn, and %d generations are there", s.Withdrawn, e.generations(r))
				}
				return len(s.Withdrawn) > 0
			})
			if files := e.mounts.files(r.Target); files["password"] != "" {
				e.Error("the file is there")
			}
			e.wantWithdrawn(sharedSecret)

			e.restart() // a new process verifies that
			e.confirm()
			after(2 * pruneTime)
			e.wantWithdrawn(sharedSecret)

			e.update(configMap("app"), "a", "2") // the last generation has no file of it either
			if files := e.mounts.files(r.Target); files["a"] != "2" {
				e.Error("the other object's change is not shown")
			}
			e.wantWithdrawn(sharedSecret)

			e.grant(access, sharedConfig, sharedSecret)
			e.wantWithdrawn()
			e.wantFiles(r, "a", "2", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
			e.end(r)
		})
	}
}

// TestAFailedWithdrawalIsNotTold: it is not reported while the files cannot be changed, nor after a write that has created them again. It
// is reported when a later try succeeds.
func TestAFailedWithdrawalIsNotTold(t *testing.T) {
	acrossInBubbleOf(t, "the volume can't be opened", func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant()
		e.mounts.failAt("Reopen", errFault)
		e.wait(2 * reviewTime)
		e.wantWithdrawn()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.mounts.failAt("Reopen", nil)
		e.wait(reviewTime)
		e.wantWithdrawn(sharedSecret, sharedConfig)
		e.wantFiles(r, "a", "1", "app.env", "OWN=1\n")
	})
	acrossInBubbleOf(t, "a write that failed has put the file there again", func(e *env, access *fakeAccess, r binding.Request) {
		r.Attributes["writeStrategy"] = "InPlace"
		e.publish(r)
		access.grant(sharedConfig)
		e.wait(reviewTime + 2*pruneTime)
		e.wantWithdrawn(sharedSecret)
		e.writes.set(nil, func() error { return errFault })
		e.grant(access, sharedConfig, sharedSecret)
		e.wantWithdrawn()
		e.failReopen(errFault)
		access.grant(sharedConfig)
		e.wait(2 * reviewTime)
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.wantWithdrawn()
		e.failReopen(nil)
		e.wait(reviewTime)
		e.wantWithdrawn(sharedSecret)
		e.wantFiles(r, "a", "1", "password", "", "app.env", "CA=c1\nOWN=1\n")
	})
}

// TestWithdrawnWaitsForTheLastGeneration: a superseded generation may still have a file of the object.
func TestWithdrawnWaitsForTheLastGeneration(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		access.grant(sharedConfig)
		e.takeUntil(func() bool { return e.generations(r) == 2 })
		e.failReopen(errFault) // so that nothing can be pruned
		after(10 * pruneTime)
		if e.wantWithdrawn(); e.generations(r) != 2 {
			t.Errorf("%d generations", e.generations(r))
		}
		e.failReopen(nil)
		e.wait(reviewTime)
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

// If it is not known what the files show, a refusal is confirmed too.
func TestARefusalIsConfirmedOfAnUnreadableVolume(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.publish(r)
		e.restartUnread()
		access.grant()
		e.publish(r)
		e.mounts.failAt("Reopen", errFault)
		e.settle()
		e.mounts.failAt("Reopen", nil)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.end(r)
	})
}

// With a lower limit, a volume above it may still change and become smaller.
func TestAShrinkIsNeverTooLarge(t *testing.T) {
	for name, restart := range map[string]func(e *env, r binding.Request){
		"by its pod's spec": func(e *env, _ binding.Request) { e.restart() },
		"by a publish":      func(e *env, r binding.Request) { e.restartUnread(); e.publish(r) },
	} {
		for _, strategy := range []string{"Atomic", "InPlace"} {
			inBubbleOf(t, name+" "+strategy, func(e *env) {
				e.objects.put(configMap("app"), "a", pages(100), "b", pages(100))
				r := e.publishNew("v1", "configMap", "app", "writeStrategy", strategy)
				e.opts.MaxVolumeSize, e.opts.MaxTotalSize = 50*pageSize, 50*pageSize
				restart(e, r)
				e.settle()
				e.updateApp(r, "a", strings.ToUpper(pages(100)), "b", pages(100)) // this takes as much as before
				e.updateApp(r, "a", pages(90), "b", pages(99))
				e.wantProblem(r, "")
				e.wantUsed(taken(189, 2))
				e.update(configMap("app"), "a", pages(90), "b", pages(100))
				e.wantFiles(r, "a", pages(90), "b", pages(99))
				e.wantProblem(r, "more than the 204800 bytes that a volume may have (--max-volume-size)")
				e.end(r)
			})
		}
	}
}

// An object of another namespace without keys has no file. Files of the pod's own namespace stay when it is refused.
func TestARefusedObjectWithoutFiles(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		e.objects.put(sharedSecret)
		r.Attributes["sources"] = "[{configMap: {name: app}}, {secret: {name: db, namespace: platform}}]"
		e.publish(r)
		e.objects.remove(configMap("app"))
		access.grant()
		e.restart()
		e.wait(reviewTime)
		e.wantFiles(r, "a", "1")
		if shown := e.status().Shown; shown[configMap("app")].UID == "" || shown[sharedSecret].UID != "" {
			t.Errorf("the status says %v", shown)
		}
		e.end(r)
	})
}
