package publisher

import (
	"testing"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/manager"
)

// After a restart it is not known of what the files were made. Whatever else cannot be read or written then, files whose right was revoked
// are removed. The rest stays as it was, apart from env files with a revoked part.
func TestAWithdrawalNeedsTheVolumeOnly(t *testing.T) {
	for name, test := range map[string]struct {
		sources string
		// fail makes updates fail. restart ends the process and starts the next one.
		fail    func(e *env)
		restart func(e *env, r binding.Request)
		files   []string
	}{
		"another object can't be read": {
			sources: acrossSources,
			fail:    func(e *env) { e.objects.failWith(configMap("app"), manager.ErrNotSynced) },
			restart: func(e *env, _ binding.Request) { e.restart() },
			files:   []string{"a", "1", "app.env", "OWN=1\n"}, // it holds up only its own files
		},
		"taken over by a publish, and an own object was deleted": {
			sources: acrossSources,
			fail:    func(e *env) { e.objects.remove(configMap("app")) },
			restart: func(e *env, r binding.Request) { e.restartUnread(); e.publish(r) },
			files:   []string{"a", "1"},
		},
		"the size limit was lowered": {
			sources: acrossSources,
			fail: func(e *env) {
				e.objects.put(configMap("app"), "a", pages(3))
				e.objects.put(sharedConfig, "CA", pages(1))
				e.settle()
				e.opts.MaxVolumeSize = 2 * pageSize
			},
			restart: func(e *env, _ binding.Request) { e.restart() },
			files:   []string{"a", pages(3), "app.env", "OWN=1\n"}, // this is smaller
		},
		"the size limit was lowered, and an own object grew": {
			sources: acrossSources,
			fail: func(e *env) {
				e.objects.put(configMap("app"), "a", pages(3))
				e.settle()
				e.opts.MaxVolumeSize = 2 * pageSize
				e.halt()
				e.objects.put(configMap("app"), "a", pages(9))
			},
			restart: func(e *env, _ binding.Request) { e.restart() },
			files:   []string{"a", pages(3)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
				r.Attributes["sources"] = test.sources
				e.publish(r)
				test.fail(e)
				test.restart(e, r)
				access.grant()
				after(reviewTime)
				e.settle()
				e.wantFiles(r, test.files...)
				after(pruneTime)
				e.settle()
				if n := e.generations(r); n != 1 {
					t.Errorf("%d generations", n)
				}
				e.wantProblem(r, secretRefused)

				e.objects.failWith(configMap("app"), nil)
				e.objects.put(configMap("app"), "a", "9")
				after(2 * testResync)
				e.settle()
				e.wantFiles(r, "a", "9", "app.env", "OWN=1\n")
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// A volume that is taken over by a publish loses files only after a confirmed refusal, as any other.
func TestARefusalIsConfirmedOfAVolumeTakenOver(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r binding.Request) {
		files := []string{"a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n"}
		e.publish(r)
		e.restartUnread()
		access.grant() // as a server that has just started refuses everybody
		e.publish(r)
		e.settle()
		e.wantFiles(r, files...)
		access.grant(sharedSecret, sharedConfig)
		e.confirm()
		e.wantFiles(r, files...)
		e.wantEvents()

		access.grant()
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1", "app.env", "OWN=1\n")

		// If no file shows an object, nothing can be removed, so the rest need not wait for the confirmation.
		e.restartUnread()
		e.objects.put(configMap("app"), "a", "2")
		e.publish(r)
		e.settle()
		e.wantFiles(r, "a", "2", "app.env", "OWN=1\n")
		e.unpublish(r)
		e.wantNothing()
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
		e.unpublish(r)
		e.wantNothing()
	})
}

// With a lower limit, a volume above it may still become smaller.
func TestAShrinkIsNeverTooLarge(t *testing.T) {
	for name, restart := range map[string]func(e *env, r binding.Request){
		"by its pod's spec": func(e *env, _ binding.Request) { e.restart() },
		"by a publish":      func(e *env, r binding.Request) { e.restartUnread(); e.publish(r) },
	} {
		for _, strategy := range []string{"Atomic", "InPlace"} {
			t.Run(name+" "+strategy, func(t *testing.T) {
				inBubble(t, func(e *env) {
					e.objects.put(configMap("app"), "a", pages(100), "b", pages(100))
					r := e.request("v1", "configMap", "app", "writeStrategy", strategy)
					e.publish(r)
					e.opts.MaxVolumeSize, e.opts.MaxTotalSize = 50*pageSize, 50*pageSize
					restart(e, r)
					e.settle()
					e.objects.put(configMap("app"), "a", pages(90), "b", pages(99))
					e.settle()
					e.wantFiles(r, "a", pages(90), "b", pages(99))
					e.wantProblem(r, "")
					if got := e.used(); got != taken(189, 2) {
						t.Errorf("%d bytes counted", got)
					}
					e.objects.put(configMap("app"), "a", pages(90), "b", pages(100))
					e.settle()
					e.wantFiles(r, "a", pages(90), "b", pages(99))
					e.wantProblem(r, "more than the 204800 bytes that a volume may have (--max-volume-size)")
					e.unpublish(r)
					e.wantNothing()
				})
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
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1")
		if shown := e.status().Shown; shown[configMap("app")].UID == "" || shown[sharedSecret].UID != "" {
			t.Errorf("the status says %v", shown)
		}
		e.unpublish(r)
		e.wantNothing()
	})
}
