package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/status"
)

// TestAPodWithoutAPluginHoldsUpNobody: one that waits on a node without the plugin is listed apart. Once its containers can
// start, or a plugin's pod is there, its node lags.
func TestAPodWithoutAPluginHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	w.node("good").publish("live")
	w.registerWith("bare", "other.example.com")
	pod := w.waitingPod("stranded", "bare")
	v, r := w.converged()
	if r.status != 0 || !v.Converged || v.Nodes != 1 || len(v.WithoutPlugin) != 1 || v.WithoutPlugin[0].Name != "stranded" || v.WithoutPlugin[0].Node != "bare" {
		t.Errorf("status %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}
	text := w.run("converged", "secret/db", "-n", w.namespace)
	want := fmt.Sprintf("Pods that wait on a node without the plugin, so that nothing is mounted for them: %s/stranded.\n", w.namespace)
	if text.status != 0 || !strings.Contains(text.stdout, want) {
		t.Errorf("status %d, want a line %q\n%s", text.status, want, text.stdout)
	}

	pod.Status.Conditions[0].Status = corev1.ConditionTrue // an image is pulled, and the volumes were mounted before
	w.putPod(pod)
	w.lags("bare  NoPlugin")
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	w.putPod(pod)
	plugin := w.pluginPod("bare", "")
	plugin.Status.Conditions, plugin.Status.Phase = nil, corev1.PodPending
	w.putPod(plugin)
	w.lags("bare  NotReady")
}

// lags waits longer than the command needs for its second look.
func (w *world) lags(want string) {
	w.t.Helper()
	if v, r := w.converged("--timeout=12s"); r.status != 1 || v.Converged || !slices.Equal(laggards(v), []string{want}) || len(v.WithoutPlugin) > 0 {
		w.t.Errorf("status %d, want %s\n%s\n%s", r.status, want, r.stdout, r.stderr)
	}
}

// TestAWithdrawnObjectHoldsUpNobody: a volume from which the object was withdrawn is listed apart.
func TestAWithdrawnObjectHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	w.node("good").publish("live")
	w.registerHere("lender")
	borrower := status.Volume{
		VolumeID: "v", Name: "settings", Pod: status.Pod{Namespace: "shop", Name: "borrower", UID: "u"}, Condition: "RefForbidden", Bytes: 4096,
		Abnormal: true, Since: time.Now(), Objects: []status.VolumeObject{{
			Object: &status.Object{Kind: "Secret", Namespace: w.namespace, Name: "db", State: "unknown"}, Withdrawn: true,
		}},
	}
	answer, err := json.Marshal(fakeReport("lender", borrower))
	if err != nil {
		t.Fatal(err)
	}
	w.pluginPod("lender", serve(t, func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, string(answer)) }))
	v, r := w.converged()
	if r.status != 0 || !v.Converged || v.Volumes != 1 || len(v.Withdrawn) != 1 || v.Withdrawn[0].Pod != borrower.Pod || v.Withdrawn[0].Volume != "settings" {
		t.Errorf("status %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}
	text := w.run("converged", "secret/db", "-n", w.namespace)
	if text.status != 0 || !strings.Contains(text.stdout, "Volumes from which the object was withdrawn, because their pods may not have it any more: volume settings of shop/borrower.\n") {
		t.Errorf("status %d\n%s", text.status, text.stdout)
	}
}
