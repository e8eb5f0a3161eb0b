package manager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

// secretRefs returns n references whose names begin with a prefix.
func secretRefs(prefix string, n int) []volume.Ref {
	refs := make([]volume.Ref, 0, n)
	for i := range n {
		refs = append(refs, secretRef(fmt.Sprint(prefix, "-", i)))
	}
	return refs
}

// answerAfter has the server take its time for each answer.
func (e *env) answerAfter(d time.Duration) {
	e.api.set(func() {
		e.api.hold = func(apiRequest) <-chan struct{} {
			answer := make(chan struct{})
			time.AfterFunc(d, func() { close(answer) })
			return answer
		}
	})
}

// answerOnly has the server answer nothing but what is asked of some objects.
func (e *env) answerOnly(refs ...volume.Ref) {
	never := make(chan struct{})
	e.api.set(func() {
		e.api.hold = func(r apiRequest) <-chan struct{} {
			if slices.Contains(refs, r.ref) {
				return nil
			}
			return never
		}
	})
}

// asked returns the objects that the server was asked for, in that order.
func (e *env) asked() []volume.Ref {
	e.api.mu.Lock()
	defer e.api.mu.Unlock()
	var refs []volume.Ref
	for _, r := range e.api.seen {
		refs = append(refs, r.ref)
	}
	return refs
}

// publish registers refs as a publish that waits for them does, whose requests are queued by then.
func (e *env) publish(uid string, refs ...volume.Ref) {
	e.RegisterPod(pod(uid), "v", refs)
	synctest.Wait()
	e.Prioritize(pod(uid), refs)
}

// wantSyncedWithin waits for a synced object, and checks how long that took.
func (e *env) wantSyncedWithin(ref volume.Ref, most time.Duration) {
	e.t.Helper()
	begin := time.Now()
	for !e.item(ref).isSynced() {
		if time.Since(begin) > most {
			e.t.Errorf("%s is not known %s after it was asked for", ref, most)
			return
		}
		after(10 * time.Millisecond)
	}
}

// TestOpeningsAreBounded: a thousand objects at once are asked for some at a time. Without
// the bound, 1,000 requests were under way, each with a TLS handshake of its own.
func TestOpeningsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.answerAfter(100 * time.Millisecond)
		e.RegisterPod(pod("p"), "v", secretRefs("s", 1000))
		e.RegisterPod(pod("p"), "w", []volume.Ref{configMapRef("other kind")})
		synctest.Wait()
		if n := len(e.asked()); n != maxOpening+1 {
			t.Errorf("%d requests are under way, want %d and one of the other kind", n, maxOpening)
		}
		after(1000 / maxOpening * 100 * time.Millisecond)
		if n := len(e.asked()); n < 1000 {
			t.Errorf("%d requests were sent, want one for each object", n)
		}
	})
}

// TestOpeningsTakeTurns: a pod of few objects doesn't wait for all those of a pod of many.
func TestOpeningsTakeTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.answerAfter(100 * time.Millisecond)
		e.RegisterPod(pod("many"), "v", secretRefs("many", 500))
		e.RegisterPod(pod("more"), "v", secretRefs("more", 500))
		few := secretRefs("few", 3)
		e.RegisterPod(pod("few"), "v", few)
		after(200 * time.Millisecond)
		asked := e.asked()
		for _, ref := range few {
			if !slices.Contains(asked, ref) {
				t.Errorf("%s was not asked for in the first %d requests", ref, len(asked))
			}
		}
	})
}

// TestAPublishComesBeforeReconnects has all objects of running pods opened again while a
// publish waits.
func TestAPublishComesBeforeReconnects(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.answerAfter(100 * time.Millisecond)
		for i := range 50 {
			e.RegisterPod(pod(fmt.Sprint("running-", i)), "v", secretRefs(fmt.Sprint("running-", i), 10))
		}
		e.publish("new", secretRefs("new", 20)...)
		after(200 * time.Millisecond)
		asked := e.asked()
		for _, ref := range secretRefs("new", 20) {
			if !slices.Contains(asked, ref) {
				t.Errorf("%s was not asked for in the first %d requests", ref, len(asked))
			}
		}
	})
}

// TestHangingOpeningsDontHoldUpAPublish: 1,000 openings that never get an answer, of one pod
// or of many, that publish or reconnect; another pod's publish takes less than a second. If
// 100 pods publish at that moment and all their openings hang, it waits for its turn.
func TestHangingOpeningsDontHoldUpAPublish(t *testing.T) {
	for _, tc := range []struct {
		pods    int
		publish bool
		wait    time.Duration
		most    time.Duration
	}{
		{1, false, 0, time.Second},
		{1, true, 0, time.Second},
		{1, true, 10 * time.Second, time.Second},
		{1, true, 2 * time.Minute, time.Second},
		{5, true, time.Second, time.Second},
		{100, false, 0, time.Second},
		{100, false, 10 * time.Second, time.Second},
		{100, true, 0, 100/maxOpening*urgentTime + time.Second},
		{100, true, 10 * time.Second, time.Second},
	} {
		t.Run(fmt.Sprintf("pods=%d publish=%t after=%s", tc.pods, tc.publish, tc.wait), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("answered")
				e.api.put(secret("answered", "1"))
				e.answerOnly(ref)
				for i := range tc.pods {
					refs := secretRefs(fmt.Sprint("hangs-", i), 1000/tc.pods)
					e.RegisterPod(pod(fmt.Sprint("hangs-", i)), "v", refs)
					if tc.publish {
						e.Prioritize(pod(fmt.Sprint("hangs-", i)), refs)
					}
				}
				after(tc.wait)
				e.publish("new", ref)
				e.wantSyncedWithin(ref, tc.most)
			})
		})
	}
}

// TestHangingOpeningsAreBounded: what hangs gives up its slot, and no more hang than may.
func TestHangingOpeningsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.answerOnly()
		e.RegisterPod(pod("p"), "v", secretRefs("s", 1000))
		after(hangTime - time.Millisecond)
		if n := len(e.asked()); n != maxOpening {
			t.Errorf("%d requests within %s, want %d", n, hangTime, maxOpening)
		}
		after(5 * hangTime)
		if n := len(e.asked()); n != maxOpening+maxHanging {
			t.Errorf("%d requests within %s, want %d and %d", n, 6*hangTime, maxOpening, maxHanging)
		}
	})
}

// TestAnotherPodsObjectIsNotPutBehindOnesOwn: a reference to an object that waits neither
// moves it behind the objects of the pod that adds it, nor leaves it behind those of the
// pod that has it already.
func TestAnotherPodsObjectIsNotPutBehindOnesOwn(t *testing.T) {
	for _, manyFirst := range []bool{false, true} {
		t.Run(fmt.Sprint("manyFirst=", manyFirst), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				e.answerAfter(100 * time.Millisecond)
				shared := secretRef("shared")
				e.RegisterPod(pod("first"), "v", secretRefs("first", 100))
				many := append(secretRefs("many", 1000), shared)
				if manyFirst {
					e.publish("many", many...)
					e.publish("few", shared)
				} else {
					e.publish("few", shared)
					e.publish("many", many...)
				}
				e.wantSyncedWithin(shared, 500*time.Millisecond)
			})
		})
	}
}

// TestAnOpeningThatIsNotWantedAnyMoreLeaves: unregistered objects are not asked for, and
// leave nothing behind.
func TestAnOpeningThatIsNotWantedAnyMoreLeaves(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		e.answerOnly()
		refs := secretRefs("s", 200)
		e.RegisterPod(pod("p"), "v", refs)
		e.Refresh(refs)
		after(hangTime)
		e.UnregisterPod(pod("p"), "v")
		synctest.Wait()
		sent := len(e.asked())
		after(time.Minute)
		if n := len(e.asked()) - sent; n != 0 {
			t.Errorf("%d requests for objects that nobody references", n)
		}
		e.wantNoOpenings()
	})
}

// wantNoOpenings checks that nothing waits or is under way.
func (e *env) wantNoOpenings() {
	e.t.Helper()
	o := e.openings()
	o.mu.Lock()
	defer o.mu.Unlock()
	for kind, l := range o.queues {
		if len(l.pods)+len(l.opening)+len(l.hanging) > 0 {
			e.t.Errorf("%s: %d pods, %d openings and %d that hang are left", kind, len(l.pods), len(l.opening), len(l.hanging))
		}
	}
}

func (e *env) openings() *openings {
	switch s := e.objects.store.(type) {
	case *watchStore:
		return s.openings
	case *pollStore:
		return s.openings
	}
	e.t.Fatal("no openings")
	return nil
}

// TestAnAnswerEndsThePriority: a publish that waits for missing objects has got its answer.
// What it asks for from then on holds up no other pod.
func TestAnAnswerEndsThePriority(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		missing, other := secretRefs("missing", 10*maxOpening), secretRef("other")
		e.api.put(secret("other", "1"))
		e.RegisterPod(pod("running"), "v", []volume.Ref{other})
		e.publish("waiting", missing...)
		for _, ref := range missing {
			_, _ = e.GetObject(ref)
		}
		synctest.Wait()
		e.wantNotFound(missing[0])
		e.answerAfter(100 * time.Millisecond)
		e.Refresh(missing)
		e.Refresh([]volume.Ref{other})
		after(400 * time.Millisecond)
		if n := len(e.api.requests(other)); n != 1 {
			t.Errorf("%d requests for the running pod's object within 400 ms, want one, before those of the publish", n)
		}
	})
}

// TestManyBeginInAPause: in an outage every object of the node begins to wait, and none looks at all others.
func TestManyBeginInAPause(t *testing.T) {
	errOver := errors.New("the reflector is stopped")
	o := newOpenings(false)
	o.scopes[scope{level: backoff.Node}] = &pause{until: time.Now().Add(time.Hour), err: errors.New("no route")}
	began := time.Now()
	for i := range 50_000 {
		p := &candidate{Ref: secretRef(fmt.Sprint("s", i)), pod: types.UID(fmt.Sprint("p", i%100))}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errOver)
		if _, err := o.begin(ctx, p, func(error) {}); !errors.Is(err, errOver) {
			t.Fatal(err)
		}
		o.mu.Lock()
		o.enqueue(&opening{openings: o, candidate: p, ready: make(chan struct{})})
		o.mu.Unlock()
	}
	if took := time.Since(began); took > 10*time.Second { // each look at all others would take a minute
		t.Errorf("it took %s", took)
	}
}

// TestFailuresNameNoOtherObject: what fails for all is told of each object, whose pods may be of others.
func TestFailuresNameNoOtherObject(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.api.set(func() { e.api.refuse = func(apiRequest) error { return syscall.ECONNREFUSED } })
		for _, name := range []string{"theirs", "ours"} {
			e.RegisterPod(pod(name), "v", []volume.Ref{secretRef(name)})
			synctest.Wait()
		}
		_, err := e.GetObject(secretRef("ours"))
		if !errors.Is(err, syscall.ECONNREFUSED) || strings.Contains(err.Error(), "theirs") {
			t.Errorf("got %v", err)
		}
	})
}

// TestFirstAdmitted compares it with a look at each opening.
func TestFirstAdmitted(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 0))
		account := func() volume.Account { return volume.Account{Namespace: "ns", Name: fmt.Sprint(random.IntN(3))} }
		s := scopes{}
		for _, level := range []backoff.Level{backoff.Credential, backoff.Kind, refusedScope} {
			s[scopeOf(&candidate{Ref: secretRef("a"), account: account()}, level)] = &pause{until: time.Now().Add(time.Hour)}
		}
		var ops []*opening
		for range random.IntN(8) {
			p := &candidate{Ref: secretRef("a"), account: account()}
			if random.IntN(2) == 0 {
				p.refusal = errOlder
			}
			ops = append(ops, &opening{candidate: p})
		}
		var want *opening
		if i := slices.IndexFunc(ops, func(op *opening) bool { return s.admit(op.candidate) }); i >= 0 {
			want = ops[i]
		}
		if got := firstAdmitted(ops, s); got != want {
			t.Fatalf("seed %d: got %v, want %v", seed, got, want)
		}
	}
}
