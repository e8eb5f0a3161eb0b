package publisher

import (
	"strings"
	"testing"
	"time"
)

func TestAFailedWriteIsTriedAgain(t *testing.T) {
	for _, test := range []struct {
		name       string
		fail, heal func(e *env)
	}{{
		name: "write",
		fail: func(e *env) { e.writes.set(func() error { return errFault }, nil) },
		heal: func(e *env) { e.writes.set(nil, nil) },
	}} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				r := e.request("v1")
				e.publish(r)
				e.writes.times()
				test.fail(e)
				e.objects.put(configMap("app"), "a", "2")
				e.settle()
				e.wantProblem(r, "injected fault")
				after(2 * time.Minute)
				wantBackOff(t, e.writes.times())
				e.publish(r) // the pod is not concerned
				test.heal(e)
				after(retryMax + time.Second)
				e.wantFiles(r, "a", "2")
				e.wantProblem(r, "")
				if got := e.recorded(r)[configMap("app")]; got != e.objects.get(configMap("app")).Version {
					t.Errorf("the record says %v", got)
				}
				e.writes.times()
				after(30 * time.Second)
				if n := len(e.writes.times()); n > 0 {
					t.Errorf("%d writes after it went well", n)
				}

				// The next failure is tried again soon: it has nothing to do with this one.
				e.writes.set(func() error { return errFault }, nil)
				e.objects.put(configMap("app"), "a", "3")
				after(time.Minute)
				wantBackOff(t, e.writes.times())
			})
		})
	}
}

// wantBackOff checks the times of tries: the first at once, then each after twice as
// long, but no more than 5s apart.
func wantBackOff(t *testing.T, at []time.Time) {
	t.Helper()
	if len(at) < 10 {
		t.Fatalf("%d tries", len(at))
	}
	for i, want := 1, retryMin; i < len(at); i, want = i+1, want*2 {
		gap := at[i].Sub(at[i-1])
		if i < 5 && gap != want { // later the prune brings another one
			t.Errorf("try %d came after %v, want %v", i, gap, want)
		}
		if gap > 5*time.Second {
			t.Errorf("try %d came after %v", i, gap)
		}
	}
}

// Links that can't be made after the switch fail a write whose files show already.
func TestAWriteThatFailsAfterTheSwitchCounts(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.writes.set(nil, func() error { return errFault })
		e.objects.put(configMap("app"), "a", strings.Repeat("2", 5000))
		e.settle()
		// The generation before stays for its readers.
		if used := e.used(); used != taken(2, 1)+pageSize+2*inodeSize {
			t.Errorf("%d bytes counted, want what the files take now", used)
		}
		v := e.lookup("v1")
		if v.contents.shown[configMap("app")] != e.objects.get(configMap("app")).Version {
			t.Error("an older answer would be taken for a newer one")
		}
	})
}
