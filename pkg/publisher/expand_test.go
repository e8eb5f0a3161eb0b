package publisher

import (
	"testing"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
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
func (e *env) wantFile(r binding.Request, path, want string) {
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
		e.wantReason(<-result, failure.ReasonInvalid, unfit)
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
