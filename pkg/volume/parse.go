package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The attributes' names that are also parts of field paths.
const (
	attrVolume    = "volume"
	attrNamespace = "namespace"
	attrItems     = "items"
	attrSources   = "sources"
)

// parser turns attributes into a spec. It is used for one call of Parse.
type parser struct {
	decoder
	given map[string]string
	pod   Pod
	// across means that refs may name other namespaces than the pod's.
	across bool
	// window is the spread of a volume without that attribute.
	window time.Duration
	// volumes has the field that names each of the pod's own volumes. versions has the field of the versions source, or "".
	volumes  map[string]string
	versions string
	// canaryAt is the first field that names a canary, or nil.
	canaryAt *field.Path
}

// Option changes what Parse accepts.
type Option func(*parser)

// AcrossNamespaces allows refs to name other namespaces than the pod's. Parse does not check whether the pod may read those objects.
func AcrossNamespaces() Option { return func(p *parser) { p.across = true } }

// DefaultSpread sets the spread of a volume without that attribute. 0 means none.
func DefaultSpread(window time.Duration) Option { return func(p *parser) { p.window = window } }

// CheckSpread returns an error if a duration cannot be the value of spread. 0 means no spread.
func CheckSpread(window time.Duration) error {
	if window != 0 && (window < minSpread || window > maxSpread) {
		return errors.New("must be a duration from 1s to 1h, such as 5m, or 0s for none")
	}
	return nil
}

// Parse turns the attributes of a pod's volume into a validated Spec with defaults applied. volumeContext may hold the whole volume
// context; the kubelet's own keys are ignored. pod is the pod that the volume belongs to. Its namespace is the default for names, and
// without AcrossNamespaces the only one.
//
// The error lists every wrong field with its path, the kind of the wrong value, and what would be right. If no field is wrong by itself, it
// lists the conflicts between fields.
func Parse(volumeContext map[string]string, pod Pod, options ...Option) (*Spec, error) {
	p := &parser{given: Attributes(volumeContext), pod: pod, volumes: map[string]string{}}
	for _, option := range options {
		option(p)
	}
	size := 0
	for name, value := range p.given {
		size += len(name) + len(value)
	}
	if size > MaxAttributesSize {
		return nil, field.TooLong(field.NewPath("volumeAttributes"), "", MaxAttributesSize)
	}
	values, err := json.Marshal(p.given)
	if err != nil {
		return nil, fmt.Errorf("write the volume attributes as JSON: %w", err)
	}
	spec := p.spec(values)
	if err := p.err(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return spec, nil
}

func (p *parser) spec(values []byte) *Spec {
	a := attributes{UpdatePolicy: UpdateLive, WriteStrategy: WriteAtomic, OnDelete: DeleteKeep}
	p.decode(nil, values, &a)
	spec := &Spec{UpdatePolicy: a.UpdatePolicy, WriteStrategy: a.WriteStrategy, OnDelete: a.OnDelete}
	if a.DefaultMode != nil {
		spec.DefaultMode = p.mode(field.NewPath("defaultMode"), &intstr.IntOrString{Type: intstr.String, StrVal: *a.DefaultMode})
	}
	spec.UID, spec.GID = p.id("uid", a.UID), p.id("gid", a.GID)
	supported(p, field.NewPath("updatePolicy"), a.UpdatePolicy, UpdateLive, UpdatePinned)
	supported(p, field.NewPath("writeStrategy"), a.WriteStrategy, WriteAtomic, WriteInPlace)
	supported(p, field.NewPath("onDelete"), a.OnDelete, DeleteKeep, DeleteRemove)
	spec.Spread = p.spread(a.Spread, spec.Pinned())
	spec.SameRevision = p.sameRevision(a.SameRevision, spec.InPlace())
	spec.Directories = p.directories(a.Directories)
	if a.Sources != nil {
		spec.Sources = p.listForm(*a.Sources)
	} else {
		spec.Sources = p.shortForm(a)
	}
	p.withCanaries(spec)
	return spec
}

// id reads a decimal user or group ID. It returns nil if the attribute is not set.
func (p *parser) id(name string, text *string) *int64 {
	if text == nil {
		return nil
	}
	id, err := strconv.ParseUint(*text, 10, 31)
	if err != nil {
		p.add(field.Invalid(field.NewPath(name), shorten(*text), fmt.Sprintf("must be a decimal number from 0 to %d", math.MaxInt32)))
	}
	n := int64(id)
	return &n
}

// spread reads the attribute spread. Without it the default applies, but a pinned volume takes no change and has no spread.
func (p *parser) spread(text *string, pinned bool) time.Duration {
	switch {
	case text == nil && pinned:
		return 0
	case text == nil:
		return p.window
	}
	at := field.NewPath("spread")
	window, err := time.ParseDuration(*text)
	if err != nil {
		window = -1
	}
	switch err := CheckSpread(window); {
	case err != nil:
		p.add(field.Invalid(at, shorten(*text), err.Error()))
	case pinned:
		p.add(field.Forbidden(at, "must not be set beside updatePolicy Pinned: such a volume never changes"))
	}
	return window
}

// sameRevision reads the attribute sameRevision.
func (p *parser) sameRevision(text *string, inPlace bool) bool {
	if text == nil {
		return false
	}
	at := field.NewPath("sameRevision")
	supported(p, at, *text, "false", "true")
	if *text == "true" && inPlace {
		p.add(field.Forbidden(at, "must not be true beside writeStrategy InPlace: readers of such a volume may see a change of several files half done"))
	}
	return *text == "true"
}

// supported refuses a value that is not one of values.
func supported[T ~string](p *parser, at *field.Path, value T, values ...T) {
	if !slices.Contains(values, value) {
		p.add(field.NotSupported(at, shorten(string(value)), values))
	}
}

// valid refuses an empty text, or a text with problems found by Kubernetes' validation.
func (p *parser) valid(at *field.Path, text, required string, check func(string) []string) bool {
	if text == "" {
		p.add(field.Required(at, required))
		return false
	}
	problems := check(text)
	if len(problems) > 0 {
		p.add(field.Invalid(at, shorten(text), strings.Join(problems, "; ")))
	}
	return len(problems) == 0
}

// set returns those of some attributes that are set.
func (p *parser) set(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		_, ok := p.given[name]
		return !ok
	})
}
