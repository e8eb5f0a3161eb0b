package publisher

import (
	"testing"
	"testing/synctest"

	"github.com/refvol/refvol/pkg/volume"
)

// Files name their objects whoever read these. With pods' identity, what was revoked goes all the same while the volume can't be updated, and nothing is
// told of as shown that is not.
func TestRevokedAfterASwitchToPodsIdentity(t *testing.T) {
	const (
		required = `[{configMap: {name: app}}, {secret: {name: db}}]`
		across   = `[{configMap: {name: app}}, {secret: {name: db}}, {secret: {name: db, namespace: platform, items: [{key: password, path: other}]}}]`
	)
	for name, test := range map[string]struct {
		strategy, sources string
		files             []string
	}{
		"Atomic":                          {"Atomic", required, []string{"a", "1"}},
		"InPlace":                         {"InPlace", required, []string{"a", "1", "password", ""}},
		"Atomic, with what names itself":  {"Atomic", across, []string{"a", "1", "other", "p2"}},
		"InPlace, with what names itself": {"InPlace", across, []string{"a", "1", "password", "", "other", "p2"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				access, identity := &fakeAccess{}, &fakeIdentity{held: map[string]string{}}
				access.grant(sharedSecret)
				e := newEnv(t, func(o *Options) { o.Reviews, o.CrossNamespace = access.reviews(), true })
				e.run()
				e.objects.put(configMap("app"), "a", "1")
				e.objects.put(secret("db"), "password", "p1")
				e.objects.put(sharedSecret, "password", "p2")
				r := e.tokened("v1", "t1", "sources", test.sources, "writeStrategy", test.strategy)
				e.publish(r)

				e.objects.remove(configMap("app"))
				access.grant(configMap("app"), sharedSecret)
				e.opts.Identity = identity
				e.restart()
				e.settle()
				if files := e.mounts.files(r.Target); files["a"] != "1" || files["password"] != "p1" {
					t.Errorf("before the refusal is confirmed it shows %v", files)
				}
				after(reviewTime)
				e.settle()
				e.wantFiles(r, test.files...)
				for ref, version := range e.status().Shown {
					if ref == secret("db") && version != (volume.Version{}) {
						t.Errorf("the status says that %s is shown", ref)
					}
				}

				e.objects.put(configMap("app"), "a", "9")
				access.grant(configMap("app"), secret("db"), sharedSecret)
				after(reviewTime)
				e.settle()
				if files := e.mounts.files(r.Target); files["a"] != "9" || files["password"] != "p1" {
					t.Errorf("once it may be updated it shows %v", files)
				}
				e.wantProblem(r, "")
				e.unpublish(r)
				e.wantNothing()
			})
		})
	}
}

// An object of another namespace without keys has no file. Files of the pod's own namespace stay
// when it is refused: they are no files of it.
func TestARefusedObjectWithoutFiles(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
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
