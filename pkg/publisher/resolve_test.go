package publisher

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
)

var errNoPod = fmt.Errorf("read pod: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "pod-v1"))

// podEnv has a literal value, which concerns only the pod, and a value from a Secret.
func podEnv() volume.Env {
	return volume.Env{
		Vars: []volume.EnvVar{
			{Name: "PLAIN", Value: canary},
			{Name: "PASSWORD", Key: &volume.Reference{Ref: secret("db"), Key: "password", Field: "spec.containers[0].env[1].valueFrom.secretKeyRef"}},
			{Name: "NODE", FieldRef: volume.PodNodeName},
			{Name: "NAME", FieldRef: volume.PodName},
		},
	}
}

const podEnvSources = "[{podEnv: {path: a.env, container: main}}, {podEnv: {path: b.env, container: side, format: shell}}]"

func TestResolve(t *testing.T) { each(t, inBubble, resolveTests) }

var resolveTests = map[string]func(e *env){
	// The environment of a pod's own spec is read once by the publish, and again by the first reconcile after a restart, because its
	// values are not recorded.
	"podEnv": func(e *env) {
		files := func(password string) []string {
			return []string{
				"a.env", "NAME=pod-v1\nNODE=node-1\nPASSWORD=" + password + "\nPLAIN=" + canary + "\n",
				"b.env", "NAME='pod-v1'\nNODE='node-1'\nPASSWORD='" + password + "'\nPLAIN='" + canary + "'\n",
			}
		}
		e.pods.set(podEnv(), nil, "MEM (resourceFieldRef limits.memory)", "CPU (resourceFieldRef limits.cpu)")
		e.objects.put(secret("db"), "password", "p1")
		r := e.publishNew("v1", "sources", podEnvSources)
		e.wantFiles(r, files("p1")...)
		wantIs(e, "asked for %v", e.pods.takeReads(), "pod-v1")
		e.wantEvents("InvalidEnvironmentVariableNames: left out, because a volume can't know them: CPU (resourceFieldRef limits.cpu), MEM (resourceFieldRef limits.memory)")
		e.update(secret("db"), "password", "p2")
		e.wantFiles(r, files("p2")...)
		e.publish(r)
		wantIs(e, "asked again for %v", e.pods.takeReads(), "")
		e.wantEvents()

		// A change while the plugin is down arrives when the pod's spec can be read.
		e.pods.set(volume.Env{}, errors.New("connection refused"))
		e.halt()
		e.objects.put(secret("db"), "password", "p3")
		e.resume()
		e.wantFiles(r, files("p2")...)
		e.wantEvents()
		e.wantLines(1, "A mounted volume is not updated", "connection refused")
		e.pods.set(podEnv(), nil, "CPU (resourceFieldRef limits.cpu)", "MEM (resourceFieldRef limits.memory)")
		e.pods.takeReads()
		e.wait(2 * time.Second)
		wantIs(e, "asked for %v after a restart", e.pods.takeReads(), "pod-v1")
		e.wantFiles(r, files("p3")...)
		e.wantProblem(r, "")
		e.wantEvents("InvalidEnvironmentVariableNames: left out, because a volume can't know them: CPU (resourceFieldRef limits.cpu), MEM (resourceFieldRef limits.memory)") // once
		e.end(r)
	},
	"failures of podEnv": func(e *env) {
		for _, test := range []struct {
			err  error
			want failure.Reason
		}{
			{errNoPod, failure.ReasonNotFound},
			{fmt.Errorf("%w: %w", pod.ErrStatic, errNoPod), failure.ReasonInvalid},
			{apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "pod-v1", errors.New("no")), failure.ReasonForbidden},
			{errors.New("connection refused"), failure.ReasonUnavailable},
		} {
			e.pods.set(volume.Env{}, test.err)
			for at, attributes := range map[string][]string{
				"sources[0].podEnv.container": {"sources", podEnvSources},
				"sources[1].volume.name":      {"sources", "[{configMap: {name: app}}, {volume: {name: native}}]"},
				"volume":                      {"volume", "native"},
			} {
				err := e.p.Publish(e.ctx, e.request("v1", attributes...))
				e.wantReason(err, test.want, at+": "+test.err.Error())
				e.wantNothing()
				if test.want == failure.ReasonForbidden {
					e.wantEvents("RefForbidden: " + at + ": ")
				} else {
					e.wantEvents()
				}
			}
		}
		e.pods.set(volume.Env{}, nil)
		e.pods.spoil(errors.New("no such thing"))
		for at, attributes := range map[string][]string{
			"sources[0].podEnv.container": {"sources", podEnvSources},
			"volume":                      {"volume", "native"},
		} {
			e.wantReason(e.p.Publish(e.ctx, e.request("v1", attributes...)), failure.ReasonInvalid, at+": no such thing")
			e.wantNothing()
		}
	},
	"variables that env files leave out are reported once per change": func(e *env) {
		e.objects.put(configMap("app"), "B.x", "1", "A-y", "1", "ok", "1")
		r := e.publishNew("v1", "sources", "[{env: {path: app.env, format: shell, envFrom: [{configMapRef: {name: app}}]}}]")
		e.wantFiles(r, "app.env", "ok='1'\n")
		e.wantEvents("InvalidEnvironmentVariableNames: app.env: skipped, because a shell file can't hold them: A-y, B.x")
		e.update(configMap("app"), "B.x", "2", "A-y", "1", "ok", "2")
		after(3 * testResync)
		e.wantFiles(r, "app.env", "ok='2'\n")
		e.wantEvents()
		e.update(configMap("app"), "B.x", "2", "ok", "2")
		e.wantEvents("InvalidEnvironmentVariableNames: app.env: skipped, because a shell file can't hold them: B.x")
		e.update(configMap("app"), "ok", "2")
		e.wantEvents()
		e.update(configMap("app"), "B.x", "3", "ok", "2")
		e.wantEvents("InvalidEnvironmentVariableNames: app.env: skipped, because a shell file can't hold them: B.x")
		e.wantProblem(r, "")
	},
	"if nothing reports changes, a publish that waits refreshes from time to time, and each mounted volume once per resync": func(e *env) {
		e.objects.put(configMap("there"), "b", "1")
		e.objects.failWith(configMap("app"), manager.ErrNotSynced)
		r := e.request("v1", "sources", "[{configMap: {name: there}}, {configMap: {name: app}}]")
		waiting := e.waiting(r)
		after(2 * time.Second)
		e.wantWaiting(waiting)
		e.wantBetween("%d refreshes in 2 s", len(e.objects.takeRefreshes(configMap("app"))), 1, 1)
		e.objects.failWith(configMap("app"), nil) // it does not exist
		after(time.Minute)
		e.wantWaiting(waiting)
		if got := len(e.objects.takeRefreshes(configMap("app"))); got < 8 || got > 10 { // at 1, 2.5, 4.8, 8.1 s ..., and then every 10 s
			e.Errorf("%d refreshes in a minute", got)
		}
		e.objects.put(configMap("app"), "a", "1")
		e.wantDone(waiting)
		e.objects.takeRefreshes(configMap("app"))
		e.wait(testResync / 2) // the publish does not wait any more
		e.wantBetween("%d refreshes as soon as it is mounted", len(e.objects.takeRefreshes(configMap("app"))), 0, 0)
		e.wait(10*testResync - testResync/2)
		e.wantBetween("%d refreshes in 10 resyncs", len(e.objects.takeRefreshes(configMap("app"))), 9, 10)
		for i := range 3 { // for the first one, the last resync may still be due
			e.objects.takeRefreshes(configMap("app"))
			e.update(configMap("app"), "a", strconv.Itoa(i))
		}
		e.wantBetween("%d refreshes for a change", len(e.objects.takeRefreshes(configMap("app"))), 0, 0)
	},
	// If it is not known whether a volume is mounted, a refusal must not be final, because the kubelet would destroy what a running pod
	// may be reading.
	"a refusal is not final where a mount may be": func(e *env) {
		e.pods.set(volume.Env{}, errNoPod)
		r := e.request("v1", "sources", podEnvSources)
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonNotFound, "")
		e.wantNothing()
		e.mounts.failAt("Open", errors.New("too many open files"))
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonUnavailable, "")
		e.mounts.failAt("Open", nil)
	},
	"expand waits for a value that the text can hold: a first publish waits and then fails; later the files stay": func(e *env) {
		e.objects.put(configMap("app"), "text", `p: "$(PASSWORD)"`)
		e.objects.put(secret("db"), "p", leak.Value+"\xff")
		r := e.request("v1", "sources", expandSources)
		result := e.waiting(r)
		e.wantEvents("VolumeUpdateFailed: " + unfit)
		begin := time.Now()
		e.wantReason(<-result, failure.ReasonInvalid, unfit)
		if took := time.Since(begin); took > testWait {
			e.Errorf("it gave up after %s", took)
		}
		e.settle() // it is forgotten
		result = e.waiting(r)
		e.wantEvents("VolumeUpdateFailed: " + unfit)
		e.objects.put(secret("db"), "p", `1"`)
		e.wantDone(result)
		e.settle()
		e.wantSome(r, "conf/app.yaml", `p: "1\""`)
		e.wantEvents()

		e.update(secret("db"), "p", leak.Value+"\xff")
		e.wantSome(r, "conf/app.yaml", `p: "1\""`)
		e.wantProblem(r, unfit)
		e.wantEvents("VolumeUpdateFailed: " + unfit)
		e.update(secret("db"), "other", "2")
		e.wantSome(r, "conf/app.yaml", `p: "1\""`)
		e.wantEvents("RefKeyNotFound: sources[0].expand.env[0].valueFrom.secretKeyRef: couldn't find key p in Secret shop/db (it has other); the files stay as they are")
		e.update(secret("db"), "p", "2")
		e.wantSome(r, "conf/app.yaml", `p: "2"`)
		e.wantProblem(r, "")
		e.end(r)
	},
}

// An author may have any number of variables left out, each with a long name. The text about them stays short.
func TestSkippedTextIsShort(t *testing.T) {
	var names, leftOut []string
	for i := range 500 {
		names = append(names, strings.Repeat(".", 6000)+fmt.Sprint(i))
		leftOut = append(leftOut, strings.Repeat("N", 1000)+fmt.Sprintf("%d (fileKeyRef a b c)", i))
	}
	var skipped []payload.Skipped
	for i := range 20 {
		skipped = append(skipped, payload.Skipped{Path: strings.Repeat("p", 4000) + fmt.Sprint(i), Format: "shell", Invalid: names, Dependent: names})
	}
	text := skippedText(skipped, failure.Few(leftOut))
	if len(text) > 20<<10 {
		t.Fatalf("%d bytes: %.200s", len(text), text)
	}
	for _, want := range []string{" and 490 more", "and in 10 more files", "... (6001 bytes)", "left out, because a volume can't know them: NNN"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	few := skippedText([]payload.Skipped{{Path: "e", Format: "dotenv", Invalid: []string{"a.b", "c.d"}}}, "CPU (resourceFieldRef limits.cpu)")
	if want := "e: skipped, because a dotenv file can't hold them: a.b, c.d; left out, because a volume can't know them: CPU (resourceFieldRef limits.cpu)"; few != want {
		t.Errorf("\ngot  %s\nwant %s", few, want)
	}
	long := strings.Repeat("n", failure.MaxNameLength)
	few = skippedText([]payload.Skipped{{Path: "e", Format: "shell", Dependent: []string{long}}}, "")
	if want := "e: left out, because they refer to values that a volume can't know: " + long; few != want {
		t.Errorf("\ngot  %s\nwant %s", few, want)
	}
}

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

// errKMS is what the manager returns for an object that the API server can't decrypt.
var errKMS = fmt.Errorf("Secret \"shop/db\": %w: %w", manager.ErrNotSynced, apierrors.NewInternalError(errFault))

// TestAnUnknownObjectHoldsUpOnlyItsFiles: while one object can't be read, the volume takes the changes of the others, and says so. A file that
// is made of it stays whole.
func TestAnUnknownObjectHoldsUpOnlyItsFiles(t *testing.T) {
	for name, restarts := range map[string]bool{"running": false, "restarted": true} {
		for _, strategy := range []string{"Atomic", "InPlace"} {
			inBubbleOf(t, name+" "+strategy, func(e *env) {
				app, db, mix, gone := configMap("app"), secret("db"), configMap("mix"), configMap("gone")
				e.objects.put(app, "a", "1")
				e.objects.put(db, "p", "1")
				e.objects.put(mix, "M", "1")
				r := e.request("v1", "writeStrategy", strategy, "sources", `[{configMap: {name: app}}, {secret: {name: db}}, {configMap: {name: gone, optional: true}},
						{env: {path: e.env, envFrom: [{configMapRef: {name: mix}}, {secretRef: {name: db}}]}}]`)
				e.publish(r)
				e.wantFiles(r, "a", "1", "p", "1", "e.env", "M=1\np=1\n")
				e.objects.failWith(db, errKMS)
				if restarts {
					e.resume()
				}
				e.objects.put(db, "p", "2")
				e.objects.put(app, "a", "2", "new", "1")
				e.objects.put(mix, "M", "2")
				e.objects.put(gone, "g", "1")
				e.wait(time.Minute)
				e.wantFiles(r, "a", "2", "new", "1", "p", "1", "e.env", "M=1\np=1\n", "g", "1")
				e.wantCondition(ConditionStale, `Secret "shop/db"`)
				if s := e.status(); s.Shown[app] != e.objects.get(app).Version || s.Shown[mix] == e.objects.get(mix).Version {
					e.Errorf("shown %v", s.Shown)
				}
				e.wantEvents()
				looks := e.mounts.count("Reopen")
				after(10 * testResync)
				e.wantBetween("%d looks at the files while nothing changed, but to save receipts", e.mounts.count("Reopen")-looks, 0, 2)
				e.remove(app)
				e.wantCondition(failure.RefDeleted) // it is a fault, which the other condition must not hide
				e.wantEvents("RefDeleted")
				e.objects.put(app, "a", "3", "new", "1")
				e.objects.failWith(db, nil)
				e.wait(time.Minute)
				e.wantFiles(r, "a", "3", "new", "1", "p", "2", "e.env", "M=2\np=2\n", "g", "1")
				e.wantCondition(ConditionCurrent)
				e.end(r)
			})
		}
	}
}

// TestAFaultIsNotHidden: a volume that is held, or that waits for its moment, and whose superseded generations cannot be removed, has a
// fault: the status says so, with the reason to wait beside it, and the pod's author gets the event.
func TestAFaultIsNotHidden(t *testing.T) {
	app, db := configMap("app"), secret("db")
	for name, test := range map[string]struct {
		spread, share, beside string
	}{
		"none":      {},
		"held":      {share: "0%", beside: "a newer version for 0% of the pods"},
		"spreading": {spread: "1h", beside: "has a change, which the files will show at"},
	} {
		inBubbleOf(t, name, func(e *env) {
			e.objects.put(app, "a", "1")
			e.objects.put(db, "p", "1")
			r := e.publishNew("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]", "spread", cmp.Or(test.spread, "0s"))
			e.objects.put(db, "p", "2") // leaves a superseded generation
			if test.spread != "" {
				after(time.Until(stage.NextMoment(r.Pod.UID, time.Hour, time.Now())))
			}
			e.settle()
			if test.beside != "" {
				e.updateShare(app, test.share, "a", "2")
			}
			e.failReopen(errFault) // nothing can be pruned
			e.wait(10 * time.Minute)
			e.wantGenerations(r, 2)
			e.wantCondition(failure.VolumeUpdateFailed, test.beside)
			e.wantEvents(r.Pod.Name + ": VolumeUpdateFailed")
			e.failReopen(nil)
		})
	}
}
