// Package payload turns a volume's spec and its objects into the tree of files that the volume shows.
//
// It owns the rules by which keys become paths, modes and owners. They are the kubelet's rules. It is pure: no file, clock or network. It
// must not know where objects come from or how a tree is written.
package payload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// These modes are added to a volume with an fsGroup, as the kubelet does for a read-only volume: the group may read every file and enter
// every directory, and what is made in a directory inherits its group.
const (
	directoryMode      fs.FileMode = 0o755
	groupFileMode      fs.FileMode = 0o440
	groupDirectoryMode             = 0o550 | fs.ModeSetgid
)

// MaxEnvBytes limits the variables and the joined and expanded files of a volume together, in bytes. A variable counts with its name, its
// value and variableBytes. The limit is more than the kernel passes to a new process.
const (
	MaxEnvBytes = 4 << 20

	variableBytes = 64
)

// Options are what a tree depends on beside the spec and the objects.
type Options struct {
	// FSGroup, if not nil, is the volume mount group of the publish request. It owns every file and directory, unless the spec names a
	// group, and it widens their modes, unless the spec names an owner or a group.
	FSGroup *int64
	// ForgiveDeleted treats a required object that does not exist as an empty one. A missing key of an existing object is still an error.
	ForgiveDeleted bool
	// Refused has the objects that the pod may not read. Their files are left out, required or not.
	Refused map[volume.Ref]bool
	// Held has the objects whose files stay as they are. A file of several objects stays as a whole if one of them is held. If the volume
	// shows nothing of a held object, nothing is added, required or not.
	Held Held
	// MaxFiles limits the keys, items and other files of all sources together, and MaxDirectories their directories. 0 means no limit.
	MaxFiles, MaxDirectories int
	// Pod and NodeName are the values for variables of an env file that name fields of the pod.
	Pod      volume.Pod
	NodeName string
}

// Objects has the objects of a spec by reference. An object that does not exist has no entry.
type Objects map[volume.Ref]*volume.Object

// Rendering is what a volume shows at one moment.
type Rendering struct {
	*volume.Payload
	// Skipped says which variables the env files leave out.
	Skipped []Skipped
}

// Skipped names the variables that one env file leaves out, apart from those that the spec marks as unknown. The names are sorted. They may
// contain any character that is allowed in a variable's name.
type Skipped struct {
	Path   string
	Format volume.EnvFormat
	// Invalid are variables whose names or values the format cannot hold.
	Invalid []string
	// Dependent are variables that refer to unknown variables.
	Dependent []string
}

// Render returns the files that spec shows of objects. The tree shares the objects' byte slices, so the caller must not change them.
//
// If several sources give the same path and at least one path comes from a key without items, the last source wins. The error is a
// *MissingError if required objects or keys are missing, with all of them; a *TooLargeError if the spec asks for more than a volume can
// show; an *UnfitError if a value cannot be written into a text; or an error about paths that conflict. No error holds a value. podEnv and
// volume sources must be resolved before; see package pod.
//
// Options.MaxFiles and MaxEnvBytes limit the memory and the time, however often the spec names the objects.
func Render(spec *volume.Spec, objects Objects, opts Options) (*Rendering, error) {
	r := &renderer{spec: spec, objects: objects, opts: opts, files: map[string]volume.File{}, keeps: newKeeper(spec, &opts.Held)}
	for i := range spec.Sources {
		source := &spec.Sources[i]
		if err := r.add(source); err != nil {
			return nil, err
		}
		if err := r.check(source.Field); err != nil {
			return nil, err
		}
	}
	if r.missing.Count > 0 {
		missing := r.missing // a copy without the rest of r, because failures keep it in memory
		return nil, &missing
	}
	tree := r.tree()
	if err := r.checkDirectories(tree.Files); err != nil {
		return nil, err
	}
	if err := r.addDirectories(tree); err != nil {
		return nil, err
	}
	return &Rendering{Payload: tree, Skipped: r.skipped}, nil
}

// TooLargeError says that a spec asks for more than a volume can show.
type TooLargeError struct{ text string }

// Error returns a text with the field, what the spec asks for, and the limit.
func (e *TooLargeError) Error() string { return e.text }

// check returns an error if a limit is exceeded, for the source that exceeds it. A pod's author can name one large object many times, so
// the work counts: a key that a later source replaces counts too.
func (r *renderer) check(at string) error {
	switch {
	case r.opts.MaxFiles > 0 && r.named > r.opts.MaxFiles:
		return &TooLargeError{fmt.Sprintf("%s: Too many: the volume may show %d keys, items and other files, each counted as often as it is named: one for each page of --max-volume-size", at, r.opts.MaxFiles)}
	case r.envBytes > MaxEnvBytes:
		return &TooLargeError{fmt.Sprintf("%s: Too long: the joined and expanded files of a volume and the names and values of its variables may take %d bytes together, with %d for each variable, counted as often as it is set", at, MaxEnvBytes, variableBytes)}
	}
	return nil
}

// renderer collects what the sources of a spec show, during one call of Render.
type renderer struct {
	spec    *volume.Spec
	objects Objects
	opts    Options
	// files has the last file of each path. named is how many files were added, including replaced ones.
	files   map[string]volume.File
	named   int
	missing MissingError
	skipped []Skipped
	// keeps knows what stays of held objects.
	keeps *keeper
	// envBytes is the use of joined and expanded files and all variables; see MaxEnvBytes.
	envBytes int
}

// tree returns the tree of all files. Modes are widened for an fsGroup, unless the spec names an owner or a group.
func (r *renderer) tree() *volume.Payload {
	tree := &volume.Payload{DirMode: directoryMode, Files: make([]volume.File, 0, len(r.files))}
	if r.spec.UID != nil {
		tree.UID = int(*r.spec.UID)
	}
	if gid := cmp.Or(r.spec.GID, r.opts.FSGroup); gid != nil {
		tree.GID = int(*gid)
	}
	widen := r.opts.FSGroup != nil && r.spec.UID == nil && r.spec.GID == nil
	if widen {
		tree.DirMode |= groupDirectoryMode
	}
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		file := r.files[name]
		if widen {
			file.Mode |= groupFileMode
		}
		tree.Files = append(tree.Files, file)
	}
	return tree
}

// add adds the files of one source, and records what is missing.
func (r *renderer) add(source *volume.Source) error {
	switch {
	case r.keeps != nil && r.keep(source):
		return nil
	case source.Projection != nil:
		r.addProjection(source.Projection, source.Below.Path, source.Field)
		return nil
	case source.Env != nil:
		return r.addEnv(source)
	case source.Join != nil:
		return r.addJoin(source)
	case source.Expand != nil:
		return r.addExpand(source)
	case source.Versions:
		return r.addVersions(source)
	default:
		return fmt.Errorf("%s: nothing to show yet", source.Field)
	}
}

// addProjection adds the files of an object's keys. Keys without items are put into dir; "" is the volume's root.
func (r *renderer) addProjection(p *volume.Projection, dir, at string) {
	object := r.object(p.Ref, p.Optional, at)
	if object == nil {
		return
	}
	refs := []volume.Ref{p.Ref} // all files share it
	if len(p.Items) == 0 {
		for _, data := range []map[string][]byte{object.Data, object.BinaryData} {
			for key, value := range data {
				if r.opts.MaxFiles > 0 && r.named > r.opts.MaxFiles {
					return
				}
				r.addFile(volume.File{Path: path.Join(dir, key), Data: value, Refs: refs, User: r.user(nil, p)}, r.spec.DefaultMode, p.DefaultMode)
			}
		}
	}
	for _, item := range p.Items {
		value, ok := object.Value(item.Key)
		switch {
		case ok:
			r.addFile(volume.File{Path: item.Path, Data: value, Refs: refs, User: r.user(item.User, p)}, item.Mode, r.spec.DefaultMode, p.DefaultMode)
		case !p.Optional:
			r.missing.add(Missing{Ref: p.Ref, Key: item.Key, Field: at}, object)
		}
	}
}

// addJoin adds a file of several keys. A part without a final newline gets one, so that the next part starts a line.
func (r *renderer) addJoin(source *volume.Source) error {
	file := volume.File{Path: source.Path}
	for i := range source.Join {
		part := &source.Join[i]
		object := r.objectOf(&file, part.Ref, part.Optional, part.Field)
		if object == nil {
			continue
		}
		value, ok := object.Value(part.Key)
		if !ok && !part.Optional {
			r.missing.add(Missing{Ref: part.Ref, Key: part.Key, Field: part.Field}, object)
		}
		r.envBytes += len(value) + 1
		if err := r.check(source.Field); err != nil {
			return err
		}
		file.Data = append(file.Data, value...)
		if len(value) > 0 && value[len(value)-1] != '\n' {
			file.Data = append(file.Data, '\n')
		}
	}
	r.addFile(file, source.Mode, r.spec.DefaultMode)
	return nil
}

// shownObject is an object in the versions file.
type shownObject struct {
	Kind            volume.Kind `json:"kind"`
	Namespace       string      `json:"namespace"`
	Name            string      `json:"name"`
	UID             types.UID   `json:"uid"`
	ResourceVersion string      `json:"resourceVersion"`
}

// addVersions adds the file that names the shown objects and their versions. It holds no value.
func (r *renderer) addVersions(source *volume.Source) error {
	file := volume.File{Path: source.Path}
	shown := struct {
		Objects []shownObject `json:"objects"`
	}{Objects: []shownObject{}}
	for _, ref := range r.spec.Refs() {
		version := r.opts.Held.At[ref]
		if object := r.object(ref, true, source.Field); object != nil {
			version = object.Version
		}
		if version.UID != "" {
			file.Refs = addRef(file.Refs, ref)
			shown.Objects = append(shown.Objects, shownObject{ref.Kind, ref.Namespace, ref.Name, version.UID, version.ResourceVersion})
		}
	}
	var err error
	if file.Data, err = json.MarshalIndent(shown, "", "  "); err != nil {
		return fmt.Errorf("write the versions of the objects: %w", err)
	}
	file.Data = append(file.Data, '\n')
	r.addFile(file, source.Mode, r.spec.DefaultMode)
	return nil
}

// object returns an object, or nil if it does not exist, is refused or is held. A missing required object is recorded.
func (r *renderer) object(ref volume.Ref, optional bool, at string) *volume.Object {
	if r.opts.Refused[ref] || r.opts.Held.has(ref) {
		return nil
	}
	object := r.objects[ref]
	if object == nil && !optional && !r.opts.ForgiveDeleted {
		r.missing.add(Missing{Ref: ref, Field: at}, nil)
	}
	return object
}

// objectOf is like object, for a file of several objects. It also adds the object to the file's Refs, even if no value of it ends up in the
// file.
func (r *renderer) objectOf(file *volume.File, ref volume.Ref, optional bool, at string) *volume.Object {
	object := r.object(ref, optional, at)
	if object != nil {
		file.Refs = addRef(file.Refs, ref)
	}
	return object
}

func addRef(refs []volume.Ref, ref volume.Ref) []volume.Ref {
	if i, found := slices.BinarySearchFunc(refs, ref, volume.CompareRefs); !found {
		return slices.Insert(refs, i, ref)
	}
	return refs
}

// user returns the owner of a file, or nil for the tree's owner. It is the item's owner, or else that of the pod's own volume that names
// the object, unless the spec has an owner for all files.
func (r *renderer) user(ofItem *int64, p *volume.Projection) *int64 {
	if ofItem == nil && r.spec.UID == nil {
		return p.DefaultUser
	}
	return ofItem
}

// addFile adds a file. Its mode is the first of modes that is not nil.
func (r *renderer) addFile(file volume.File, modes ...*fs.FileMode) {
	file.Mode = volume.DefaultMode
	if mode := cmp.Or(modes...); mode != nil {
		file.Mode = *mode
	}
	r.files[file.Path] = file
	r.named++
}

// checkDirectories returns an error if a file is in the place of another file's directory, or if there are too many directories. The spec's
// own paths were checked when it was parsed, but a key without items can still conflict. Each directory is looked up once.
func (r *renderer) checkDirectories(files []volume.File) error {
	checked := map[string]struct{}{"": {}}
	for i := range files {
		for dir := parent(files[i].Path); ; dir = parent(dir) {
			if _, again := checked[dir]; again {
				break
			}
			checked[dir] = struct{}{}
			if _, found := r.files[dir]; found {
				return fmt.Errorf("path %q can't be shown: %q is a file of the same volume; map one of the two keys to another path", short(files[i].Path), short(dir))
			}
		}
		if most := r.opts.MaxDirectories; most > 0 && len(checked)-1 > most {
			return &TooLargeError{fmt.Sprintf("the files need more than the %d directories that a volume may have (they follow --max-volume-size)", most)}
		}
	}
	return nil
}

// short returns at most the first 64 bytes of a path, for an error.
func short(path string) string {
	const most = 64
	if len(path) <= most {
		return path
	}
	return strings.ToValidUTF8(path[:most], "") + "..."
}

// parent returns the directory of a path, "" for the root.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
