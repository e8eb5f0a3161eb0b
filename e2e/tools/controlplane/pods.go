package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// PutPod stores a pod with the UID that it has, in place of one of its name. The API server
// gives each pod that it is sent another UID, and a test has to choose the one of a target
// path first: so this goes to etcd, where the API server finds the pod.
func (c *ControlPlane) PutPod(ctx context.Context, pod *corev1.Pod) error {
	stored := pod.DeepCopy()
	stored.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return c.put(ctx, podKey(pod.Namespace, pod.Name), stored)
}

// PutConfigMap is PutPod of a ConfigMap. It is there too while the API server is away.
func (c *ControlPlane) PutConfigMap(ctx context.Context, object *corev1.ConfigMap) error {
	stored := object.DeepCopy()
	stored.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	return c.put(ctx, []byte("/registry/configmaps/"+object.Namespace+"/"+object.Name), stored)
}

func (c *ControlPlane) put(ctx context.Context, key []byte, stored any) error {
	text, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	return c.etcdCall(ctx, "put", map[string][]byte{"key": key, "value": text}, nil)
}

// Pod returns the pod of a name as etcd has it, nil if there is none.
func (c *ControlPlane) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	var found struct {
		Kvs []struct{ Value []byte }
	}
	err := c.etcdCall(ctx, "range", map[string][]byte{"key": podKey(namespace, name)}, &found)
	if err != nil || len(found.Kvs) == 0 {
		return nil, err
	}
	pod := &corev1.Pod{}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(found.Kvs[0].Value, nil, pod); err != nil {
		return nil, fmt.Errorf("decode pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// DeletePod removes a pod at once, if there is one.
func (c *ControlPlane) DeletePod(ctx context.Context, namespace, name string) error {
	return c.etcdCall(ctx, "deleterange", map[string][]byte{"key": podKey(namespace, name)}, nil)
}

func podKey(namespace, name string) []byte { return []byte("/registry/pods/" + namespace + "/" + name) }

// etcdCall calls a method of etcd's key-value service as JSON.
func (c *ControlPlane) etcdCall(ctx context.Context, method string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.etcdClient.Do(req)
	if err != nil {
		return fmt.Errorf("etcd: %s: %w", method, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	if err == nil && response != nil {
		err = json.Unmarshal(answer, response)
	}
	if err != nil {
		return fmt.Errorf("etcd: %s: %w", method, err)
	}
	return nil
}

// newEtcdClient returns a client that has a few requests at etcd at a time: hundreds that tests send at once would
// each take so long that all reach their deadlines.
func (c *ControlPlane) newEtcdClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		MaxConnsPerHost:   8,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if c.attached != "" {
				return (&net.Dialer{}).DialContext(ctx, "tcp", c.etcdAddress)
			}
			return (&net.Dialer{}).DialContext(ctx, "unix", c.path("etcd.sock"))
		},
	}}
}

// ServeEtcd passes requests to etcd on from a port of this machine's loopback until Stop, for
// tests that are attached to the control plane from a virtual machine. It returns the port.
func (c *ControlPlane) ServeEtcd() (port uint16, err error) {
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "etcd"}) },
		Transport: c.etcdClient.Transport,
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.etcdServer = server
	address, err := netip.ParseAddrPort(server.Listener.Addr().String())
	return address.Port(), err
}
