package publisher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

// recordVersion is the format of a record; a record of another one is set aside.
const recordVersion = 1

// record is what a restarted plugin must know of a volume that is still mounted. It
// holds no value of an object, no digest of one and no token. It needs no fsync: the
// mount that it tells of does not survive what would lose it.
type record struct {
	Version  int        `json:"version"`
	VolumeID string     `json:"volumeID"`
	Target   string     `json:"target"`
	ReadOnly bool       `json:"readOnly"`
	FSGroup  *int64     `json:"fsGroup,omitempty"`
	Pod      volume.Pod `json:"pod"`
	// Proven says that the pod's own token proved what Pod says of its service account.
	Proven     bool              `json:"proven,omitempty"`
	Attributes map[string]string `json:"attributes"`
	// Spec keeps the defaults that the volume was published with. What the pod's own
	// spec adds to it is read again: it may hold passwords.
	Spec *volume.Spec `json:"spec"`
	// Size is what was counted for the volume, in bytes.
	Size int64 `json:"size"`
	// Skipped is what the pod's author was told of variables that the env files lack: names.
	Skipped string `json:"skipped,omitempty"`
	// Shown is written after the files, so they are never older than it says.
	Shown []shownObject `json:"shown"`
}

// shownObject is the state of one object that the files show.
type shownObject struct {
	volume.Ref
	volume.Version
}

// recordOf returns the record of a volume whose files take size bytes; the caller
// holds the lock of its contents.
func recordOf(v *published, size int64) *record {
	r := &record{
		Version:    recordVersion,
		VolumeID:   v.request.VolumeID,
		Target:     v.request.Target,
		ReadOnly:   v.request.ReadOnly,
		FSGroup:    v.request.FSGroup,
		Pod:        v.request.Pod,
		Proven:     v.contents.proof.done,
		Attributes: v.request.Attributes,
		Spec:       v.spec,
		Size:       size,
		Skipped:    v.contents.told,
	}
	for _, ref := range v.refs {
		r.Shown = append(r.Shown, shownObject{Ref: ref, Version: v.contents.shown[ref]})
	}
	return r
}

// recorded returns the volume that a record tells of.
func (p *Publisher) recorded(r *record) *published {
	refs := make([]volume.Ref, 0, len(r.Shown))
	for _, s := range r.Shown {
		refs = append(refs, s.Ref)
	}
	v := p.newPublished(Request{
		VolumeID:   r.VolumeID,
		Target:     r.Target,
		Pod:        r.Pod,
		Attributes: r.Attributes,
		ReadOnly:   r.ReadOnly,
		FSGroup:    r.FSGroup,
	}, r.Spec, refs)
	v.contents.told, v.contents.proof.done = r.Skipped, r.Proven
	if !r.Spec.HasPodEnv() {
		v.contents.spec = r.Spec
	}
	for _, s := range r.Shown {
		v.contents.shown[s.Ref] = s.Version
	}
	return v
}

// validate checks a record that was read from disk, where anybody with root may
// have written it.
func (r *record) validate(name, kubeletDir string) error {
	switch {
	case r.Version != recordVersion:
		return fmt.Errorf("version: Unsupported value: %d", r.Version)
	case r.VolumeID+recordSuffix != name:
		return fmt.Errorf("volumeID: Invalid value: %q: must be the file's name", r.VolumeID)
	case mount.ValidateVolumeID(r.VolumeID) != nil:
		return fmt.Errorf("volumeID: %w", mount.ValidateVolumeID(r.VolumeID))
	case r.Pod.UID == "" || r.Pod.Namespace == "" || r.Pod.Name == "":
		return errors.New("pod: Required value: namespace, name and uid")
	case r.Spec == nil || len(r.Spec.Sources) == 0:
		return errors.New("spec.sources: Required value")
	case r.Size < 0:
		return fmt.Errorf("size: Invalid value: %d: must not be negative", r.Size)
	}
	if err := checkTarget(kubeletDir, r.Pod, r.Target); err != nil {
		return fmt.Errorf("target: %w", err)
	}
	return nil
}

// decodeRecord reads and validates the text of the record of a name.
func decodeRecord(name string, text []byte, kubeletDir string) (*record, error) {
	r := &record{}
	// A field that this version does not know asks for something that it can't do.
	decode := json.NewDecoder(bytes.NewReader(text))
	decode.DisallowUnknownFields()
	if err := decode.Decode(r); err != nil {
		return nil, fmt.Errorf("%w: decode record %s: %w", errDamaged, name, err)
	}
	if err := r.validate(name, kubeletDir); err != nil {
		return nil, fmt.Errorf("%w: record %s: %w", errDamaged, name, err)
	}
	return r, nil
}
