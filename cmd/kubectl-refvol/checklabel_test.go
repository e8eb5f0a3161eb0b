package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/refvol/refvol/internal/leak"
)

// labelServer is an API server with one pod, which names the Secret db, and one node. It answers dry runs as the two policies do.
type labelServer struct {
	t       *testing.T
	kubelet string // of the node, or "" if nobody may list nodes
	hasNo   bool   // policies
}

func (s *labelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	value := base64.StdEncoding.EncodeToString([]byte(leak.Value))
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/namespaces/shop/pods":
		_, _ = fmt.Fprint(w, `{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "web", "namespace": "shop"}, "spec": {
			"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "db"}}], "volumeMounts": [{"name": "db", "mountPath": "/db"}]}],
			"volumes": [{"name": "db", "secret": {"secretName": "db"}}]}}]}`)
	case "POST /api/v1/namespaces/shop/pods":
		s.create(w, r)
	case "GET /api/v1/namespaces/shop/secrets/db":
		_, _ = fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "shop"}, "data": {"a": %q, "b": %q}}`, value, value)
	case "GET /api/v1/nodes":
		if s.kubelet == "" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"}`)
			return
		}
		_, _ = fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "node-1"}, "status": {"nodeInfo": {"kubeletVersion": %q}}}]}`, s.kubelet)
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprint(w, `{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "no"}`)
	}
}

func (s *labelServer) create(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	pod, ok := object.(*corev1.Pod)
	if !ok || r.URL.Query().Get("dryRun") != metav1.DryRunAll {
		s.t.Errorf("sent %T with %s: %v", object, r.URL.RawQuery, err)
		return
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	switch {
	case s.hasNo:
	case pod.Labels["refvol.dev/live"] == "true":
		pod.Spec.Containers[0].VolumeMounts[0].Name = "refvol-db"
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "refvol-db", VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: driverName, ReadOnly: new(true), VolumeAttributes: map[string]string{"volume": "db"}},
		}})
	case pod.Labels["refvol.dev/restart"] == "true":
		pod.Spec.InitContainers = []corev1.Container{{Name: "refvol-notify", VolumeMounts: []corev1.VolumeMount{{Name: "refvol-notify-state"}, {Name: "refvol-notify-env"}}}}
	}
	if err := json.NewEncoder(w).Encode(pod); err != nil {
		s.t.Error(err)
	}
}

// TestCheckLabel: a label is evaluated by dry runs of the namespace's pods, and with the sizes of their objects, whose values are not printed.
func TestCheckLabel(t *testing.T) {
	for _, test := range []struct {
		server labelServer
		args   []string
		want   string
		err    string
		status int
	}{
		{labelServer{}, []string{"--label=live"}, "POD  OWNER  PODS  CHANGES\nweb  -      1     db\n\n1 pod in namespace shop: 1 would change, 0 could not start, 0 not known\n", "", 0},
		{labelServer{}, []string{"--label=live", "--max-volume-size=4Ki", "-o", "jsonpath={.kind} {.pods[*].problems}"}, `LabelReport ["has 2 keys`, "check: pods that could not start: 1", 1},
		{labelServer{kubelet: "v1.36.2"}, []string{"--label=restart"}, "POD  OWNER  PODS  CHANGES\nweb  -      1     refvol-notify\n\n1 pod in", "", 0},
		{labelServer{kubelet: "v1.35.2"}, []string{"--label=restart", "-o", "jsonpath={.oldNodes}"}, `[{"kubelet":"v1.35.2","name":"node-1"}]`, "check: pods that could not start: 1", 1},
		{labelServer{}, []string{"--label=restart", "-o", "jsonpath={.nodesUnread} {.policy}"}, "true yes", "", 0},
		{labelServer{hasNo: true}, []string{"--label=restart"}, "stays as it is written: pod web: variables\n", "check: the component of the label refvol.dev/restart is not installed", 2},
		{labelServer{hasNo: true}, []string{"--label=live"}, "stays native: pod web: db\nnot known: the component is not installed", "check: the component of the label refvol.dev/live is not installed", 2},
	} {
		test.server.t = t
		server := httptest.NewServer(&test.server)
		out, _, err := runCommand(t, append([]string{"check", "-n", "shop", "--server", server.URL}, test.args...)...)
		server.Close()
		if !strings.HasPrefix(strings.ReplaceAll(out, "volume db: ", ""), test.want) || message(err) != test.err || exitStatus(err) != test.status {
			t.Errorf("%q: got %v, status %d\n%s\nwant\n%s", test.args, err, exitStatus(err), out, test.want)
		}
		if err := leak.Check("the output", out); err != nil {
			t.Error(err)
		}
	}
}
