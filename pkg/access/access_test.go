package access

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/pkg/volume"
)

var (
	web     = volume.Pod{Namespace: "shop", Name: "web", UID: "web", ServiceAccount: "web"}
	db      = volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: "db"}
	errAway = errors.New("the API server is away")
)

// A new volume's pod needs all verbs. A yes is valid for five seconds from its arrival: otherwise a slow one would never be valid.
func TestAdmit(t *testing.T) {
	inBubble(t, []string{"list", "watch"}, func(e *env) {
		e.api.set(func() { e.api.delay = time.Nanosecond }) // otherwise the answer may be there before the second call
		began := time.Now()
		e.wantAdmit(began, Unknown, ErrPending)
		e.wantAdmit(began, Unknown, ErrPending) // it shares the questions
		e.wantAsked("shop/web list db, urgent", "shop/web watch db, urgent")
		after(time.Nanosecond)
		e.wantAdmit(began, Allowed, nil)
		if n := e.changeCount(); n != 2 {
			e.t.Errorf("%d changes were reported", n)
		}
		after(admitAge - time.Nanosecond)
		e.wantAdmit(time.Now(), Allowed, nil)
		e.wantAsked()
		after(time.Nanosecond)
		e.api.set(func() { e.api.delay = 2*admitAge - time.Second })
		began = time.Now()
		e.wantAdmit(began, Unknown, ErrPending)
		e.wantAsked("shop/web list db, urgent", "shop/web watch db, urgent")
		after(2 * admitAge)
		e.wantAdmit(began, Allowed, nil)
	})
}

// A no counts for the publish that asked. A later one asks again, so that new consent is used at once. A publish must not be admitted by a yes
// from before a no, whatever fails meanwhile.
func TestAdmitTakesNoOldAnswer(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		e.api.set(func() { e.api.yes = false })
		e.publish(Refused, nil)
		after(time.Millisecond)
		e.api.set(func() { e.api.yes = true })
		e.publish(Allowed, nil)
		e.api.takeAsked()
		after(time.Hour)
		e.wantAsked() // it is not needed any more
		e.publish(Allowed, nil)
		after(admitAge)
		e.api.set(func() { e.api.yes = false })
		e.publish(Refused, nil)
		after(time.Millisecond)
		e.api.set(func() { e.api.err = errAway })
		e.publish(Unknown, errAway)
	})
}

// A mounted volume relies on answers up to testAge old. An older one is asked again, and counts meanwhile.
func TestKeeps(t *testing.T) {
	inBubble(t, []string{"list", "watch"}, func(e *env) {
		e.api.set(func() { e.api.delay = time.Millisecond }) // otherwise the answer may be there at once
		e.wantRecheck(Unknown, ErrPending)
		if !e.HasPending(web.Account(), map[volume.Ref]bool{db: true}) {
			t.Error("it does not ask")
		}
		after(time.Millisecond)
		e.api.set(func() { e.api.delay = 0 })
		e.wantAsked("shop/web watch db")
		e.wantRecheck(Allowed, nil)
		if e.HasPending(web.Account(), map[volume.Ref]bool{db: true}) {
			t.Error("it asks")
		}
		after(testAge - time.Nanosecond)
		e.wantRecheck(Allowed, nil)
		e.wantAsked()
		after(time.Nanosecond)
		if got, err := e.Recheck(web, db, false); got != Unknown || !errors.Is(err, ErrPending) {
			t.Errorf("a volume that is not mounted: %d, %v", got, err)
		}
		e.wantRecheck(Allowed, nil)
		e.wantAsked("shop/web watch db")
	})
}

// A no that only a publish got is confirmed once a mounted volume asks.
func TestANoOfAPublishIsConfirmed(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		e.api.set(func() { e.api.yes = false })
		e.publish(Refused, nil)
		after(2 * refusalTime)
		e.wantRecheck(Suspected, ErrPending)
		synctest.Wait()
		e.wantRecheck(Refused, nil)
	})
}

// A no is confirmed by another one to a question that is sent five seconds later. A yes in between ends the suspicion.
func TestARefusalIsConfirmed(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("yes again=", again), func(t *testing.T) {
			inBubble(t, []string{"get"}, func(e *env) {
				e.settle()
				e.api.set(func() { e.api.yes = false })
				after(testAge)
				e.settle()
				e.wantRecheck(Suspected, ErrPending)
				after(time.Millisecond)
				e.wantAdmit(time.Now(), Unknown, ErrPending) // the next no comes too early to confirm the first
				synctest.Wait()
				e.wantRecheck(Suspected, ErrPending)
				e.api.takeAsked()
				after(refusalTime - 2*time.Millisecond)
				e.wantRecheck(Suspected, ErrPending)
				e.wantAsked()
				e.api.set(func() { e.api.yes = again })
				after(time.Millisecond)
				e.wantAsked("shop/web get db")
				e.wantRecheck(map[bool]Verdict{false: Refused, true: Allowed}[again], nil)
				e.api.set(func() { e.api.yes = true })
				after(testAge)
				e.settle()
				e.wantRecheck(Allowed, nil)
			})
		})
	}
}

// A failure does not change a no, but the next no alone cannot confirm it: after an outage, it may come from a server that has just
// started.
func TestAFailureDelaysTheConfirmation(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		e.settle()
		after(testAge)
		e.api.set(func() { e.api.yes = false })
		e.settle()
		e.wantRecheck(Suspected, ErrPending)
		e.api.set(func() { e.api.err = errAway })
		after(refusalTime)
		e.wantRecheck(Suspected, errAway)
		e.api.set(func() { e.api.err = nil })
		e.OnNewCredential(web.Account())
		e.settle()
		e.wantRecheck(Suspected, ErrPending)
		after(refusalTime - time.Millisecond)
		e.wantRecheck(Suspected, ErrPending)
		after(time.Millisecond)
		e.wantRecheck(Refused, nil)
		e.api.set(func() { e.api.err = errAway })
		after(testAge)
		e.settle()
		e.wantRecheck(Refused, nil) // until a yes comes
	})
}

// An answer that is too old, and cannot be renewed, does not count. It is asked again with growing pauses, and the caller is notified of
// each retry.
func TestFailures(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		e.settle()
		e.api.set(func() { e.api.err = errAway })
		after(testAge)
		e.wantRecheck(Allowed, nil)
		synctest.Wait()
		e.wantRecheck(Unknown, errAway)
		e.wantAdmit(time.Now(), Unknown, errAway)
		e.api.takeAsked()
		changes := e.changeCount()
		for range 600 {
			after(time.Second)
			_, _ = e.Recheck(web, db, true)
		}
		n := len(e.api.takeAsked())
		expect.Between(t, "questions in ten minutes", n, 20, 60)
		// Each answer is a change, and so is the end of the pause after it. The last pause may still last.
		expect.Between(t, "changes", e.changeCount()-changes, 2*n-1, 2*n+1)
		e.api.set(func() { e.api.err = nil })
		e.OnNewCredential(web.Account())
		e.settle()
		e.wantRecheck(Allowed, nil)
	})
}

// A question with a token is sent for each pod, and its answer is also valid for the account.
func TestProve(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		began, token := time.Now(), volume.NewToken("t1", time.Now().Add(time.Hour))
		wantProve := func(pod volume.Pod, want Verdict, wantErr error) {
			t.Helper()
			if got, err := e.Prove(pod, db, began, token); got != want || !errors.Is(err, wantErr) {
				t.Errorf("Prove for %s: %d, %v, want %d, %v", pod.UID, got, err, want, wantErr)
			}
		}
		wantProve(web, Unknown, ErrPending)
		e.wantAsked("shop/web get db with t1, urgent")
		wantProve(web, Allowed, nil)
		e.wantAdmit(began, Allowed, nil)
		other := web
		other.UID = "other"
		wantProve(other, Unknown, ErrPending)
		e.wantAsked("shop/web get db with t1, urgent")
	})
}

// Eight questions of a pod are in flight at the same time. Another pod's questions don't wait for them.
func TestQuestionsAtOnce(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		e.api.set(func() { e.api.delay = time.Minute })
		for i := range 100 {
			_, _ = e.Admit(web, volume.Ref{Kind: volume.Secret, Namespace: "x", Name: fmt.Sprint(i)}, time.Now())
		}
		synctest.Wait()
		if n := len(e.api.takeAsked()); n != questionsAtOnce {
			t.Errorf("%d questions at once", n)
		}
		other := web
		other.UID = types.UID("other")
		_, _ = e.Admit(other, db, time.Now())
		e.wantAsked("shop/web get db, urgent")
		after(questionTimeout)
		if n := len(e.api.takeAsked()); n != questionsAtOnce {
			t.Errorf("%d questions after those without an answer ended", n)
		}
	})
}

// Answers that are not needed are forgotten.
func TestForget(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		e.settle()
		for range 10 {
			after(testAge)
			e.settle()
		}
		if answers, _ := e.left(); answers != 1 {
			t.Errorf("%d answers", answers)
		}
		after(4 * testAge)
		if answers, _ := e.left(); answers != 1 {
			t.Errorf("%d answers of those that may be asked for again", answers)
		}
		after(2 * testAge)
		if answers, pods := e.left(); answers+pods > 0 {
			t.Errorf("%d answers and %d pods are left", answers, pods)
		}
	})
}

// New fails if an option is missing.
func TestOptions(t *testing.T) {
	whole := Options{Reviews: Reviews{Ask: (&apiServer{}).ask, Verbs: []string{"get"}}, MaxAge: testAge, Changed: func(volume.ServiceAccount, volume.Ref) {}}
	if _, err := New(whole); err != nil {
		t.Fatal(err)
	}
	for name, drop := range map[string]func(*Options){
		"Ask":     func(o *Options) { o.Ask = nil },
		"Verbs":   func(o *Options) { o.Verbs = nil },
		"MaxAge":  func(o *Options) { o.MaxAge = 0 },
		"Changed": func(o *Options) { o.Changed = nil },
	} {
		opts := whole
		drop(&opts)
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "Required value") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// A panic is an error that does not show the panic's value.
func TestAPanic(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		e.api.set(func() { e.api.panics = true })
		e.settle()
		_, err := e.Recheck(web, db, true)
		if !errors.Is(err, errPanicked) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	})
}

// Close cancels the questions in flight, and no question starts afterwards.
func TestClose(t *testing.T) {
	inBubble(t, []string{"get"}, func(e *env) {
		e.api.set(func() { e.api.delay = time.Hour })
		_, _ = e.Recheck(web, db, true)
		synctest.Wait()
		began := time.Now()
		e.Close()
		e.Close()
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		e.api.takeAsked()
		after(time.Minute)
		_, _ = e.Recheck(web, db, true)
		e.wantAsked()
	})
}
