package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pkgaccess "github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/volume"
)

// fakeAccess is an API server that refuses what was not granted. Its methods are safe for
// concurrent use.
type fakeAccess struct {
	mu      sync.Mutex
	granted map[volume.Ref]bool
	err     error
	// errs is an error for single objects.
	errs   map[volume.Ref]error
	hang   bool
	panics bool
	// delay is how long an answer takes, which is that of when the question came.
	delay time.Duration
	asked []string
	// identity proves the tokens of questions.
	identity *fakeIdentity
}

func (f *fakeAccess) reviews() *pkgaccess.Reviews {
	return &pkgaccess.Reviews{Ask: f.ask, Verbs: []string{"get"}}
}

func (f *fakeAccess) ask(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, _ string, token volume.Token) (bool, error) {
	if token.Reveal() != "" {
		if err := f.identity.prove(); err != nil {
			return false, err
		}
	}
	f.mu.Lock()
	f.asked = append(f.asked, fmt.Sprintf("%s/%s %s", account.Namespace, account.Name, ref))
	hang, allowed, err, panics, delay := f.hang, f.granted[ref], cmp.Or(f.err, f.errs[ref]), f.panics, f.delay
	f.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if panics {
		panic("out of luck")
	}
	if hang {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return allowed && err == nil, err
}

func (f *fakeAccess) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeAccess) grant(refs ...volume.Ref) {
	f.set(func() {
		f.granted = map[volume.Ref]bool{}
		for _, ref := range refs {
			f.granted[ref] = true
		}
	})
}

func (f *fakeAccess) failWith(err error) { f.set(func() { f.err = err }) }

// takeAsked returns the questions in alphabetic order, and forgets them.
func (f *fakeAccess) takeAsked() []string {
	var asked []string
	f.set(func() { asked, f.asked = f.asked, nil })
	slices.Sort(asked)
	return asked
}

var (
	sharedSecret = volume.Ref{Kind: volume.Secret, Namespace: "platform", Name: "db"}
	sharedConfig = volume.Ref{Kind: volume.ConfigMap, Namespace: "platform", Name: "ca"}
	errReview    = errors.New("the API server is away")
)

// acrossSources shows an object of the pod's namespace beside some of another.
const acrossSources = `
- configMap: {name: app}
- secret: {name: db, namespace: platform, optional: true}
- env: {path: app.env, envFrom: [{configMapRef: {name: ca, namespace: platform}}], env: [{name: OWN, value: "1"}]}
`

// acrossInBubble runs a test with a Publisher that shows objects of other namespaces, of
// which all of acrossSources are granted.
func acrossInBubble(t *testing.T, test func(e *env, access *fakeAccess, r Request)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		access := &fakeAccess{}
		access.grant(sharedSecret, sharedConfig)
		e := newEnv(t, func(o *Options) { o.Reviews, o.CrossNamespace = access.reviews(), true })
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(sharedSecret, "password", "p1")
		e.objects.put(sharedConfig, "CA", "c1")
		test(e, access, e.request("v1", "sources", acrossSources))
	})
}

const (
	secretRefused = `sources[1].secret.namespace: Forbidden: service account "default" of the pod may not get Secret "platform/db"; whoever owns namespace "platform" consents by a Role and a RoleBinding there`
	configRefused = `sources[2].env.envFrom[0].configMapRef.namespace: Forbidden: service account "default" of the pod may not get ConfigMap "platform/ca"; whoever owns namespace "platform" consents by a Role and a RoleBinding there`
)

func TestAcrossNamespaces(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		e.publish(r)
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		questions := []string{`shop/default ConfigMap "platform/ca"`, `shop/default Secret "platform/db"`}
		if got := access.takeAsked(); !slices.Equal(got, questions) {
			t.Errorf("asked %q", got)
		}
		e.objects.put(sharedSecret, "password", "p2")
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p2", "app.env", "CA=c1\nOWN=1\n")
		e.publish(r)
		if got := access.takeAsked(); len(got) > 0 {
			t.Errorf("a change and a republish asked %q", got)
		}
		after(2 * testResync)
		e.settle()
		if got := access.takeAsked(); !slices.Equal(got, questions) {
			t.Errorf("the resync asked %q", got)
		}
		e.wantEvents()
		e.unpublish(r)
		e.wantNothing()
	})
}

// A refusal is final, whatever the source says of optional, and nothing was asked of the
// object, so it can't tell whether it exists.
func TestRefusedAtThePublish(t *testing.T) {
	for name, exists := range map[string]bool{"the object exists": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
				if !exists {
					e.objects.remove(sharedSecret)
				}
				access.grant(sharedConfig)
				begin := time.Now()
				e.wantReason(e.p.Publish(e.ctx, r), ReasonForbidden, secretRefused)
				if took := time.Since(begin); took != 0 {
					t.Errorf("it took %s", took)
				}
				e.wantEvents(r.Pod.String() + ": RefForbidden: " + secretRefused)
				if e.objects.registrationsMade != 0 || len(e.objects.takeReads(sharedSecret)) > 0 {
					t.Error("the object was asked for")
				}
				access.grant()
				after(consentAge)
				e.wantReason(e.p.Publish(e.ctx, r), ReasonForbidden, secretRefused+"; "+configRefused)
				e.wantNothing()
			})
		})
	}
}

// An error of the review is no refusal: the publish waits, and can be tried again.
func TestPublishWaitsForAReview(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		access.failWith(errReview)
		waiting := e.publishing(r)
		e.wantWaiting(waiting)
		after(30 * time.Second)
		e.wantWaiting(waiting)
		if n := len(access.takeAsked()); n > 2*12 {
			t.Errorf("%d questions in 30 s", n)
		}
		access.failWith(nil)
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.unpublish(r)

		access.failWith(errReview)
		after(consentAge)
		begin := time.Now()
		e.wantReason(e.p.Publish(e.ctx, r), ReasonUnavailable,
			"access could not be reviewed: the API server is away\nthe API server is away")
		if took := time.Since(begin); took != testWait {
			t.Errorf("it gave up after %s", took)
		}
		waiting = e.publishing(r)
		e.wantWaiting(waiting)
		e.unpublish(r)
		e.wantReason(<-waiting, ReasonBusy, "")
		waiting = e.publishing(r)
		e.wantWaiting(waiting)
		e.p.StopWaiting()
		e.wantReason(<-waiting, ReasonUnavailable, "")
		e.wantNothing()
	})
}

// That the plugin itself may not ask for a review is no refusal either, whenever it becomes known.
func TestPublishWhileReviewsAreRefused(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		e.publish(r)
		waiting := e.publishing(e.request("v2", "sources", acrossSources+"- configMap: {name: late}\n"))
		e.wantWaiting(waiting)
		access.failWith(apierrors.NewForbidden(schema.GroupResource{Resource: "subjectaccessreviews"}, "", errReview))
		after(reviewTime)
		e.wantReason(<-waiting, ReasonUnavailable, "")
		e.wantEvents("pod-v2: RefNotFound: ", "pod-v1: VolumeUpdateFailed: access could not be reviewed: ")
	})
}

// While the rights can't be reviewed, a mounted volume stays as it is.
func TestReviewFailsWhileMounted(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		e.publish(r)
		access.failWith(errReview)
		after(reviewTime)
		e.objects.put(sharedSecret, "password", "p2")
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		e.wantProblem(r, "access could not be reviewed: the API server is away")
		e.wantEvents(r.Pod.String() + ": VolumeUpdateFailed: access could not be reviewed: ")
		access.takeAsked()
		after(10 * time.Minute)
		if n := len(access.takeAsked()); n > 2*200 {
			t.Errorf("%d questions in ten minutes", n)
		}
		access.failWith(nil)
		after(2 * time.Minute)
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p2", "app.env", "CA=c1\nOWN=1\n")
		e.wantProblem(r, "")
		e.unpublish(r)
		e.wantNothing()
	})
}

// After a restart nothing is written before the rights were reviewed, and what was
// revoked meanwhile goes.
func TestReviewAfterARestart(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		e.publish(r)
		access.failWith(errReview)
		e.restart()
		e.objects.put(sharedSecret, "password", "p2")
		e.settle()
		e.wantFiles(r, "a", "1", "password", "p1", "app.env", "CA=c1\nOWN=1\n")
		access.failWith(nil)
		access.grant(sharedConfig)
		after(5*time.Second + 2*refusalTime)
		e.settle()
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
		e.restart()
		e.objects.put(configMap("app"), "a", "2")
		e.settle() // what is not there needs no confirmation
		e.wantFiles(r, "a", "2", "app.env", "CA=c1\nOWN=1\n")
		e.wantProblem(r, secretRefused)

		e.opts.CrossNamespace = false // switched off for the whole node
		e.restart()
		e.confirm()
		e.wantFiles(r, "a", "2", "app.env", "OWN=1\n")
		e.wantProblem(r, "sources[1].secret.namespace: Forbidden: this node shows no objects of other namespaces (its plugin runs without --cross-namespace)")
		e.publish(r)
		e.unpublish(r)
		e.wantNothing()
	})
}

// A mounted volume is taken over by a publish without a review, which could only fail.
func TestAdoptWithoutReview(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		e.publish(r)
		access.grant(sharedConfig)
		e.restartUnread()
		e.publish(r)
		e.confirm()
		e.wantFiles(r, "a", "1", "app.env", "CA=c1\nOWN=1\n")
		e.unpublish(r)
		e.wantNothing()
	})
}

// A slow API server keeps a volume of many objects neither from being published nor from
// being reviewed.
func TestManySlowReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := &fakeAccess{}
		e := newEnv(t, func(o *Options) { o.Reviews, o.CrossNamespace = access.reviews(), true })
		e.run()
		var sources strings.Builder
		var refs []volume.Ref
		for i := range 200 {
			ref := volume.Ref{Kind: volume.ConfigMap, Namespace: "platform", Name: fmt.Sprintf("c%d", i)}
			fmt.Fprintf(&sources, "- configMap: {name: %s, namespace: platform}\n", ref.Name)
			e.objects.put(ref, ref.Name, "1")
			refs = append(refs, ref)
		}
		access.grant(refs...)
		access.set(func() { access.delay = 200 * time.Millisecond })
		r := e.request("v1", "sources", sources.String())
		e.publish(r)
		e.restart()
		e.objects.put(refs[199], "c199", "2")
		after(time.Minute)
		e.settle()
		if got := e.mounts.files(r.Target)["c199"]; got != "2" {
			t.Errorf("after a minute it shows %q", got)
		}
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestUnpublishEndsBesideAReview(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		e.publish(r)
		access.set(func() { access.hang = true })
		after(reviewTime)
		synctest.Wait()
		begin := time.Now()
		e.unpublish(r)
		if took := time.Since(begin); took != 0 {
			t.Errorf("it took %s", took)
		}
		e.wantNothing()
	})
}

func TestStopEndsAReview(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		access.set(func() { access.hang = true })
		answer := e.publishing(r)
		e.wantWaiting(answer)
		begin := time.Now()
		e.p.StopWaiting()
		e.wantReason(<-answer, ReasonUnavailable, "volume v1: the plugin is stopping: "+pkgaccess.ErrPending.Error())
		if took := time.Since(begin); took > graceTime {
			t.Errorf("it took %s", took)
		}
		e.wantNothing()
	})
}

func TestOtherNamespacesAreSwitchedOff(t *testing.T) {
	inBubble(t, func(e *env) {
		err := e.p.Publish(e.ctx, e.request("v1", "secret", "db", "namespace", "platform"))
		e.wantReason(err, ReasonInvalid, `namespace: Invalid value: "platform": must be the pod's own namespace "shop": this node's plugin shows no objects of others (--cross-namespace)`)
		e.wantNothing()
	})
}

// A publish that may not wait asks all the same.
func TestAcrossNamespacesWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := &fakeAccess{}
		access.grant(sharedSecret)
		e := newEnv(t, func(o *Options) { o.Reviews, o.CrossNamespace, o.PublishWait = access.reviews(), true, 0 })
		e.run()
		e.objects.put(sharedSecret, "password", "p1")
		r := e.request("v1", "secret", "db", "namespace", "platform")
		e.publish(r)
		e.wantFiles(r, "password", "p1")
		e.unpublish(r)
		access.failWith(errReview)
		after(consentAge)
		e.wantReason(e.p.Publish(e.ctx, r), ReasonUnavailable, "access could not be reviewed: the API server is away")
		e.wantNothing()
	})
}

// An account is asked about once in half a resync for each object, however many volumes show it.
func TestReviewsOfManyVolumes(t *testing.T) {
	for _, accounts := range []int{1, 20} {
		t.Run(fmt.Sprint(accounts, " accounts"), func(t *testing.T) {
			acrossInBubble(t, func(e *env, access *fakeAccess, _ Request) {
				const volumes, minutes = 200, 10
				for i := range volumes {
					r := e.request(fmt.Sprint("v", i), "secret", "db", "namespace", "platform")
					r.Pod.ServiceAccount = fmt.Sprint("account-", i%accounts)
					e.publish(r)
				}
				after(2 * testResync)
				access.takeAsked()
				after(minutes * time.Minute)
				n := len(access.takeAsked()) / minutes
				t.Logf("%d reviews a minute of %d volumes of %d accounts", n, volumes, accounts)
				if n > 2*accounts+1 {
					t.Errorf("%d reviews a minute", n)
				}
			})
		})
	}
}
