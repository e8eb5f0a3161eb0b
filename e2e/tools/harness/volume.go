package harness

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// Volume is an inline CSI volume of a pod, as far as a kubelet tells a driver of it.
type Volume struct {
	// Name is the volume's name in the pod.
	Name string
	// Namespace, Pod, UID and ServiceAccount identify the pod.
	Namespace, Pod, UID, ServiceAccount string
	// Attributes are the volumeAttributes.
	Attributes map[string]string
	// Beside are volumes of the pod that its spec has beside this one.
	Beside []corev1.Volume
	// Unknown has no pod stored for the volume; there may be another one of the name.
	Unknown bool
	// Token is the pod's own, which the kubelet adds where the CSIDriver has tokenRequests; empty for none.
	Token string
	// TokenInSecrets hands the token over in the request's secrets, as where the CSIDriver has
	// serviceAccountTokenInSecrets, and not in the volume context.
	TokenInSecrets bool
}

// NewVolume returns a volume of a new pod in the namespace, under a UID of its own.
func NewVolume(namespace, pod string, attributes map[string]string) *Volume {
	return &Volume{
		Name: "settings", Namespace: namespace, Pod: pod, UID: string(uuid.NewUUID()), ServiceAccount: "default", Attributes: attributes,
	}
}

// tokensKey is where the kubelet puts the pod's tokens, in either map.
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// tokens returns the pod's tokens by their audiences, of which the API server's own is empty, as the kubelet writes
// them.
func (v *Volume) tokens() string {
	expires := metav1.NewTime(time.Now().Add(time.Hour)) // as the kubelet asks for
	tokens, err := json.Marshal(map[string]authenticationv1.TokenRequestStatus{"": {Token: v.Token, ExpirationTimestamp: expires}})
	if err != nil {
		panic(err) // these types marshal whatever they hold
	}
	return string(tokens)
}

// ID is the volume's handle, made as the kubelet makes it.
func (v *Volume) ID() string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(v.UID+v.Name)))
}

// Target is where the plugin has to show the volume.
func (p *Plugin) Target(v *Volume) string { return filepath.Join(p.volumeDir(v), "mount") }

func (p *Plugin) volumeDir(v *Volume) string {
	return filepath.Join(p.podsDir(), v.UID, "volumes", "kubernetes.io~csi", v.Name)
}

// PublishRequest is the request that a kubelet sends for the volume. Each call returns a new one, which the caller
// may change.
func (p *Plugin) PublishRequest(v *Volume) *csi.NodePublishVolumeRequest {
	attributes := make(map[string]string)
	maps.Copy(attributes, v.Attributes)
	maps.Copy(attributes, map[string]string{
		"csi.storage.k8s.io/pod.name":            v.Pod,
		"csi.storage.k8s.io/pod.namespace":       v.Namespace,
		"csi.storage.k8s.io/pod.uid":             v.UID,
		"csi.storage.k8s.io/serviceAccount.name": v.ServiceAccount,
		"csi.storage.k8s.io/ephemeral":           "true",
	})
	var secrets map[string]string
	switch {
	case v.Token != "" && v.TokenInSecrets:
		secrets = map[string]string{tokensKey: v.tokens()}
	case v.Token != "":
		attributes[tokensKey] = v.tokens()
	}
	return &csi.NodePublishVolumeRequest{
		VolumeId:   v.ID(),
		TargetPath: p.Target(v),
		VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		},
		Readonly:      true,
		VolumeContext: attributes,
		Secrets:       secrets,
	}
}

// Publish does what a kubelet does for a volume: it makes the parent of the target and its vol_data.json, calls
// NodePublishVolume, and after an answer that it takes for final removes what it made. The error is the plugin's own.
func (p *Plugin) Publish(ctx context.Context, v *Volume) error {
	if err := p.Prepare(v); err != nil {
		return err
	}
	if _, known := p.stored.Load(v.UID + "/" + v.Name); !known {
		if err := p.StorePod(ctx, v); err != nil {
			return err
		}
	}
	// The time is the call's alone: pods are stored one after another.
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := p.CSI().NodePublishVolume(call, p.PublishRequest(v))
	if err == nil {
		// What was refused before may have been another spec.
		return p.StorePod(ctx, v)
	}
	if IsFinalForKubelet(err) {
		if cleanErr := p.CleanUp(v); cleanErr != nil {
			return fmt.Errorf("after a final answer (%w): %w", err, cleanErr)
		}
	}
	return err
}

// IsFinalForKubelet tells whether a kubelet takes a failed publish for one that left nothing behind.
func IsFinalForKubelet(err error) bool {
	s, ok := status.FromError(err)
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return ok
}

// Prepare makes what a kubelet makes before it publishes: the parent of the target, not the target.
func (p *Plugin) Prepare(v *Volume) error {
	dir := p.volumeDir(v)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the volume's directory: %w", err)
	}
	data, err := json.Marshal(map[string]string{
		"driverName":          DriverName,
		"nodeName":            p.opts.NodeName,
		"specVolID":           v.Name,
		"volumeHandle":        v.ID(),
		"volumeLifecycleMode": "Ephemeral",
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "vol_data.json"), data, 0o600); err != nil {
		return fmt.Errorf("write the volume's data file: %w", err)
	}
	return nil
}

// Unpublish does what a kubelet does at the end of a volume: it calls NodeUnpublishVolume and removes what Prepare
// made, which fails if the plugin left anything there. The error is the plugin's own if it had one.
func (p *Plugin) Unpublish(ctx context.Context, v *Volume) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req := &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID(), TargetPath: p.Target(v)}
	if _, err := p.CSI().NodeUnpublishVolume(ctx, req); err != nil {
		return err
	}
	return p.CleanUp(v)
}

// CleanUp removes what Prepare made, and the pod's directory with it. It fails if the target is still there.
func (p *Plugin) CleanUp(v *Volume) error {
	if _, err := os.Lstat(p.Target(v)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the plugin left the target %s behind (lstat: %v)", p.Target(v), err)
	}
	file := filepath.Join(p.volumeDir(v), "vol_data.json")
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Up to the pod's; one that still holds another volume stays.
	for dir := p.volumeDir(v); dir != p.podsDir() && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
	}
	return nil
}
