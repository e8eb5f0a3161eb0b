package publisher

import (
	"testing"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/volume"
)

// expandSources writes a Secret's password into a ConfigMap's text, and has a versions file.
const expandSources = `
- expand:
    path: conf/app.yaml
    configMap: {name: app, key: text}
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: p}}, escape: json}]
- versions: {path: v}
`

// unfit is the message about a value that cannot be written.
const unfit = "sources[0].expand: the value of variable PASSWORD is not UTF-8, which escape: json needs: store a text, or set escape: url or none"

// wantFile compares one file of a volume. "" means that there must be none.
func (e *env) wantFile(r Request, path, want string) {
	e.Helper()
	if got := e.mounts.files(r.Target)[path]; got != want {
		e.Errorf("%s is %q, want %q", path, got, want)
	}
}

// TestExpandWaitsForAValue that the text can hold: a first publish waits and then fails; later the files stay.
func TestExpandWaitsForAValue(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "text", `p: "$(PASSWORD)"`)
		e.objects.put(secret("db"), "p", leak.Value+"\xff")
		r := e.request("v1", "sources", expandSources)
		result := e.publishing(r)
		e.wantWaiting(result)
		e.wantEvents("VolumeUpdateFailed: " + unfit)
		begin := time.Now()
		e.wantReason(<-result, ReasonInvalid, unfit)
		if took := time.Since(begin); took > testWait {
			t.Errorf("it gave up after %s", took)
		}
		e.settle() // it is forgotten
		result = e.publishing(r)
		e.wantWaiting(result)
		e.wantEvents("VolumeUpdateFailed: " + unfit)
		e.objects.put(secret("db"), "p", `1"`)
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		e.settle()
		e.wantFile(r, "conf/app.yaml", `p: "1\""`)
		e.wantEvents()

		e.objects.put(secret("db"), "p", leak.Value+"\xff")
		e.settle()
		e.wantFile(r, "conf/app.yaml", `p: "1\""`)
		e.wantProblem(r, unfit)
		e.wantEvents("VolumeUpdateFailed: " + unfit)
		e.objects.put(secret("db"), "other", "2")
		e.settle()
		e.wantFile(r, "conf/app.yaml", `p: "1\""`)
		e.wantEvents("RefKeyNotFound: sources[0].expand.env[0].valueFrom.secretKeyRef: couldn't find key p in Secret shop/db (it has other); the files stay as they are")
		e.objects.put(secret("db"), "p", "2")
		e.settle()
		e.wantFile(r, "conf/app.yaml", `p: "2"`)
		e.wantProblem(r, "")
		e.unpublish(r)
		e.wantNothing()
	})
}

// TestReceiptsOfExpand: the file belongs to all its objects, and so do its receipt and the status.
func TestReceiptsOfExpand(t *testing.T) {
	receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
		app, db := configMap("app"), secret("db")
		e.objects.put(app, "text", "$(PASSWORD)")
		e.objects.put(db, "p", "1")
		r := e.request("v1", "sources", expandSources)
		e.publish(r)
		for _, change := range []func(){
			func() {},
			func() { e.objects.put(db, "p", "2") },
			func() { e.objects.put(app, "text", "now $(PASSWORD)") },
		} {
			change()
			e.settle()
			e.wantOpened(app, opened.No, "conf/app.yaml")
			e.wantOpened(db, opened.No, "conf/app.yaml")
			e.read(r, opens, "conf/app.yaml")
			e.wantOpened(app, opened.Yes)
			e.wantOpened(db, opened.Yes)
			if shown := e.status().Shown; len(shown) != 2 || shown[app] != e.objects.objects[app].Version || shown[db] != e.objects.objects[db].Version {
				t.Errorf("the status has %v", shown)
			}
		}
		e.wantFile(r, "conf/app.yaml", "now 2")
		e.unpublish(r)
		e.wantNothing()
	})
}

// TestExpandOfADeletedSecret: the file stays, unless the volume has onDelete Remove.
func TestExpandOfADeletedSecret(t *testing.T) {
	for policy, want := range map[string]string{"Keep": "1", "Remove": ""} {
		inBubble(t, func(e *env) {
			e.objects.put(configMap("app"), "text", "$(PASSWORD)")
			e.objects.put(secret("db"), "p", "1")
			r := e.request("v1", "sources", expandSources, "onDelete", policy)
			e.publish(r)
			e.objects.remove(secret("db"))
			e.settle()
			e.wantFile(r, "conf/app.yaml", want)
			e.objects.put(secret("db"), "p", "2")
			e.settle()
			e.wantFile(r, "conf/app.yaml", "2")
			e.unpublish(r)
			e.wantNothing()
		})
	}
}

// TestExpandWithoutConsent: the file is removed with the right to one of its objects, including the text's.
func TestExpandWithoutConsent(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		acrossInBubble(t, func(e *env, access *fakeAccess, _ Request) {
			r := e.request("v2", "writeStrategy", strategy, "sources", `
- configMap: {name: app}
- expand:
    path: conf/app.yaml
    configMap: {name: ca, key: CA, namespace: platform}
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password, namespace: platform}}}]
`)
			e.objects.put(sharedConfig, "CA", "c1 $(PASSWORD)")
			e.publish(r)
			for _, left := range []volume.Ref{sharedConfig, sharedSecret} {
				e.wantFile(r, "conf/app.yaml", "c1 p1")
				access.grant(left)
				e.takeUntil(func() bool { return len(e.status().Withdrawn) > 0 })
				e.rest()
				e.wantFile(r, "conf/app.yaml", "")
				e.wantFile(r, "a", "1")
				e.restart()
				e.confirm()
				e.wantFile(r, "conf/app.yaml", "")
				access.grant(sharedConfig, sharedSecret)
				after(reviewTime)
				e.settle()
			}
			e.wantFile(r, "conf/app.yaml", "c1 p1")
			e.unpublish(r)
			e.wantNothing()
		})
	}
}

// TestDirectoryOfASource: all files of a source are in its directory.
func TestDirectoryOfASource(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1", "b", "1")
		r := e.request("v1", "sources", "[{configMap: {name: app, path: rules.d}}, {configMap: {name: app, path: x/y, items: [{key: a, path: z}]}}]", "directories", "[tls]")
		e.publish(r)
		e.wantFiles(r, "rules.d/a", "1", "rules.d/b", "1", "x/y/z", "1")
		e.objects.put(configMap("app"), "a", "2", "c", "2")
		e.settle()
		e.wantFiles(r, "rules.d/a", "2", "rules.d/c", "2", "x/y/z", "2")
		e.unpublish(r)
		e.wantNothing()
	})
}
